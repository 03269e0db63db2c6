"""shim: lets the storage under a program fail, fill up or be slow, by shim.c, compiled when it is first wanted; and small disks of one's own."""
import contextlib
import errno

from harness import *

_library = None


def library():
    global _library
    if not _library:
        compiler = shutil.which("cc") or skip("no C compiler")
        _library = scratch() / "shim.so"
        call([compiler, "-O1", "-shared", "-fPIC", "-o", _library, root / "tests/system/shim.c", "-ldl"])
    return _library


@contextlib.contextmanager
def storage(path, calls, code=0, after=0, delay=0.0, during=None):
    """What is started inside: `calls` on files whose path holds that text fail with errno `code` after so many bytes (write) or calls, or take
    `delay` seconds longer.  during: only while that file exists."""
    before = dict(os.environ)
    os.environ.update(LD_PRELOAD=str(library()), SHIM_PATH=str(path), SHIM_CALLS=calls, SHIM_ERRNO=str(code), SHIM_AFTER=str(after),
                      SHIM_DELAY=str(int(delay * 1e6)), SHIM_WHILE=str(during or ""), ASAN_OPTIONS="detect_leaks=0:verify_asan_link_order=0")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def words_of(code):
    return os.strerror(code)


def has_small_disks():
    """Whether this machine lets us mount a file system of our own, seen by our own children alone."""
    for words in (["unshare", "-m"], ["unshare", "-rm"]):
        with contextlib.suppress(OSError):
            if subprocess.run([*words, "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"], capture_output=True).returncode == 0:
                return words
    return None
