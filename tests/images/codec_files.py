# codec_files.py odd|orientations|photos|broken|seeds|claims|resize FOLDER [ARCHIVE]: files for codec_test.cpp, and PIL's answer to each.
import os, random, struct, sys, tarfile, zlib
import numpy as np
from PIL import Image, ImageDraw, ImageOps

kind, folder = sys.argv[1:3]
rng = np.random.default_rng(7)
manifest = []


def picture(width=90, height=60):
    """Smooth, with edges and colours: what photos are like to a decoder."""
    y, x = np.mgrid[0:height, 0:width]
    image = Image.fromarray(np.stack([128 + 100 * np.sin(x / 17 + c) * np.cos(y / (11 + c)) for c in range(3)], 2).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    draw.ellipse((width // 4, height // 4, width // 2, height // 2), fill=(220, 40, 60))
    draw.rectangle((width // 2, height // 2, width - 10, height - 20), fill=(20, 200, 90))
    return image


def fitted(image, fit, size):
    """torchvision's Resize and CenterCrop, spelled out, and PIL's own pad."""
    w, h = image.size
    if fit == "stretch":
        return image.resize((size, size), Image.BILINEAR)
    if fit == "pad":
        return ImageOps.pad(image, (size, size), Image.BILINEAR)
    w, h = (size, int(size * h / w)) if w <= h else (int(size * w / h), size)
    image = image.resize((w, h), Image.BILINEAR)
    if fit == "short":
        return image
    left, top = int(round((w - size) / 2.0)), int(round((h - size) / 2.0))
    return image.crop((left, top, left + size, top + size))


def expect(path, rgb, tolerance, fits=("cover", "short", "stretch", "pad"), sizes=(32, 61), rotate=1):
    for fit in fits:
        for size in sizes:
            out = fitted(rgb, fit, size)
            pixels = os.path.join(folder, f"{len(manifest)}.rgb")
            open(pixels, "wb").write(out.tobytes())
            manifest.append(f"{path} {fit} {size} {rotate} {tolerance} {out.height} {out.width} {pixels}")


def save(name, image, format=None, **options):
    path = os.path.join(folder, name)
    image.save(path, format, **options)
    return path


def png16(name, array):
    """[h, w, c] of 16 bits: PIL writes none with three channels."""
    h, w, c = array.shape
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in array)
    path = os.path.join(folder, name)
    open(path, "wb").write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 16, {1: 0, 2: 4, 3: 2, 4: 6}[c], 0, 0, 0)) +
                           chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
    return path


if kind == "odd":
    rgb = picture()
    gray, alpha = rgb.convert("L"), Image.linear_gradient("L").resize(rgb.size)
    palette = rgb.quantize(32)
    rgba = rgb.copy()
    rgba.putalpha(alpha)
    la = gray.copy()
    la.putalpha(alpha)
    transparent = palette.copy()
    transparent.info["transparency"] = 3
    files = [save("rgb.jpg", rgb), save("rgb444.jpeg", rgb, subsampling=0, quality=95), save("progressive.JPG", rgb, progressive=True), save("gray.jpg", gray),
             save("cmyk.jpg", rgb.convert("CMYK")), save("rgb.png", rgb), save("gray.png", gray), save("rgba.png", rgba), save("la.png", la),
             save("palette.png", palette), save("transparent.png", transparent, transparency=3), save("bits.png", rgb.convert("1")),
             save("png_named.JPEG", rgb, "PNG"), save("jpeg_named.png", rgb, "JPEG"), save("rgb.bmp", rgb), save("rgb.ppm", rgb), save("gray.pgm", gray),
             save("rgb.tif", rgb), save("lzw.tiff", rgb, compression="tiff_lzw"), save("cmyk.tif", rgb.convert("CMYK")), save("rgb.webp", rgb, lossless=True),
             save("adobe.jpg", rgb, icc_profile=None, dpi=(300, 300)), save("one_row.png", rgb.crop((0, 0, 7, 1))), save("one_pixel.png", rgb.crop((3, 3, 4, 4)))]
    for path in files:
        expect(path, Image.open(path).convert("RGB"), 0)
    # 16 bits: the upper 8 (PIL clips gray ones to white, so it is no oracle there).
    deep = rng.integers(0, 65536, (40, 50, 4), dtype=np.uint16)
    for channels, name in ((1, "gray16.png"), (2, "la16.png"), (3, "rgb16.png"), (4, "rgba16.png")):
        high = (deep[:, :, :channels] >> 8).astype(np.uint8)
        expect(png16(name, deep[:, :, :channels]), Image.fromarray(high[:, :, :3] if channels > 2 else np.repeat(high[:, :, :1], 3, 2)), 0)
elif kind == "orientations":
    for orientation in range(1, 9):
        for name, options in ((f"{orientation}.jpg", {"quality": 90}), (f"{orientation}.png", {})):
            image = picture(80, 50 + orientation)
            exif = image.getexif()
            exif[0x0112] = orientation
            path = save(name, image, exif=exif.tobytes(), **options)
            stored = Image.open(path)
            # Turned after the resize, not before: columns and rows are then rounded in the other order.
            expect(path, ImageOps.exif_transpose(stored).convert("RGB"), 0 if orientation == 1 else 0.3)
            expect(path, stored.convert("RGB"), 0, rotate=0)
elif kind == "photos":
    with tarfile.open(sys.argv[3]) as archive:
        members = sorted((m for m in archive.getmembers() if m.name.endswith(".jpg")), key=lambda m: m.name)[::7]
        for i, member in enumerate(members):
            path = os.path.join(folder, f"photo{i}.jpg")
            open(path, "wb").write(archive.extractfile(member).read())
            rgb = Image.open(path).convert("RGB")
            expect(path, rgb, 1, fits=("cover", "short"), sizes=(16, 32))        # shrunk while decoded
            expect(path, rgb, 0, fits=("cover", "short"), sizes=(64, 256))
elif kind == "broken":
    image = picture(300, 200)
    whole = {"baseline.jpg": save("w1.jpg", image), "progressive.jpg": save("w2.jpg", image, progressive=True), "rgb.png": save("w3.png", image),
             "rgb.webp": save("w4.webp", image), "rgb.tif": save("w5.tif", image, compression="tiff_lzw"), "rgb.bmp": save("w6.bmp", image),
             "rgb.ppm": save("w7.ppm", image)}
    for name, path in whole.items():
        data = open(path, "rb").read()
        open(os.path.join(folder, "truncated_" + name), "wb").write(data[: len(data) * 6 // 10])
        open(os.path.join(folder, "header_" + name), "wb").write(data[:20])
        os.remove(path)
    open(os.path.join(folder, "empty.jpg"), "wb")
    open(os.path.join(folder, "text.jpg"), "w").write("<html>404 not found</html>\n" * 20)
    open(os.path.join(folder, "noise.png"), "wb").write(rng.bytes(5000))
elif kind == "seeds":                                       # small and of every kind that the codec reads, for tests/fuzz/image_target.cpp
    rgb = picture(24, 16)
    rgba = rgb.copy()
    rgba.putalpha(Image.linear_gradient("L").resize(rgb.size))
    exif = rgb.getexif()
    exif[0x0112] = 6
    save("rgb.jpg", rgb), save("progressive.jpg", rgb, progressive=True), save("gray.jpg", rgb.convert("L")), save("cmyk.jpg", rgb.convert("CMYK")), save("turned.jpg", rgb, exif=exif.tobytes())
    save("large.jpg", picture(300, 200), quality=20)        # is shrunk while it is decoded
    save("rgb.png", rgb), save("rgba.png", rgba), save("palette.png", rgb.quantize(16), transparency=3), save("bits.png", rgb.convert("1")), save("pixel.png", rgb.crop((3, 3, 4, 4)))
    save("rgb.webp", rgb, lossless=True), save("lossy.webp", rgba, quality=50), save("animated.webp", rgb, save_all=True, append_images=[rgb.rotate(90)])
    save("rgb.tif", rgb), save("lzw.tif", rgba, compression="tiff_lzw"), save("float.tif", rgb.convert("F")), save("cmyk.tif", rgb.convert("CMYK")), save("pages.tif", rgb, save_all=True, append_images=[rgb])
    save("animated.gif", rgb, save_all=True, append_images=[rgb.rotate(90)])
    save("rgb.bmp", rgb), save("rgb.ppm", rgb), save("gray.pgm", rgb.convert("L")), save("bits.pbm", rgb.convert("1"))
    deep = rng.integers(0, 65536, (16, 24, 4), dtype=np.uint16)
    png16("gray16.png", deep[:, :, :1]), png16("rgba16.png", deep)
elif kind == "claims":                                      # a few hundred bytes that say they are SIDE x SIDE, and are not
    image = Image.new("RGB", (8, 8), (10, 200, 30))
    big = 60000
    def claim(name, where, form, **options):
        path = save(name, image, **options)
        data = bytearray(open(path, "rb").read())
        for at in where(data) if callable(where) else where:
            struct.pack_into(form, data, at, big)
        if name.endswith(".png"):                           # IHDR's checksum
            struct.pack_into(">I", data, 29, zlib.crc32(bytes(data[12:29])))
        open(path, "wb").write(data)
    frame = lambda data: [next(data.find(bytes((0xff, kind))) for kind in (0xc0, 0xc2) if data.find(bytes((0xff, kind))) > 0) + k for k in (5, 7)]
    claim("baseline.jpg", frame, ">H"), claim("progressive.jpg", frame, ">H", progressive=True)
    claim("rgb.png", (16, 20), ">I"), claim("rgb.bmp", (18, 22), "<I")
    path = save("interlaced.png", image)
    data = bytearray(open(path, "rb").read())
    data[28] = 1
    struct.pack_into(">II", data, 16, big, big), struct.pack_into(">I", data, 29, zlib.crc32(bytes(data[12:29])))
    open(path, "wb").write(data)
    tags = lambda data: [8 + 2 + 12 * k + 8 for k in range(struct.unpack_from("<H", data, struct.unpack_from("<I", data, 4)[0])[0])
                         if struct.unpack_from("<H", data, struct.unpack_from("<I", data, 4)[0] + 2 + 12 * k)[0] in (256, 257, 278)]
    claim("strips.tif", tags, "<I")
    open(os.path.join(folder, "rgb.ppm"), "wb").write(b"P6\n60000 60000\n255\n" + bytes(100))
    # 1 pixel wide: a resize whose short side is 256 would make millions of rows of them.
    for name, size in (("tall.png", (1, 40000)), ("wide.png", (40000, 1))):
        save(name, Image.new("RGB", size, (1, 2, 3)))
elif kind == "resize":
    extents = [1, 2, 3, 5, 31, 32, 33, 64, 100, 301]
    pairs = random.Random(3)
    for i in range(60):
        h, w, to_h, to_w = (pairs.choice(extents) for _ in range(4))
        if i % 6 == 0: to_w = w
        if i % 6 == 1: to_h = h
        image = rng.integers(0, 256, (h, w, 3), dtype=np.uint8)
        if i % 3 == 0: image = (image > 127).astype(np.uint8) * 255
        a, b = os.path.join(folder, f"{i}.in"), os.path.join(folder, f"{i}.out")
        open(a, "wb").write(image.tobytes())
        open(b, "wb").write(Image.fromarray(image).resize((to_w, to_h), Image.BILINEAR).tobytes())
        print(a, h, w, b, to_h, to_w)
open(os.path.join(folder, "manifest"), "w").write("\n".join(manifest)) if manifest else None
