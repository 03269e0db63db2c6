#include "storage/stage_manifest.hpp"

#include <sys/stat.h>

#include <cctype>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string_view>

#include "base/error.hpp"
#include "base/in_order.hpp"
#include "storage/descriptor.hpp"
#include "storage/sealed_file.hpp"
#include "storage/shards.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view first_words = "lockstep-stage 1 ";

std::string hexadecimal(std::string_view bytes) {
  std::string digits;
  for (const char c : bytes) digits += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4], digits += "0123456789abcdef"[c & 15];
  return digits;
}

}  // namespace

std::optional<StageManifest::Shard> shard_at(const std::string& folder, const std::string& name) {
  const Descriptor file((fs::path(folder) / name).string(), O_RDONLY);
  struct stat status {};
  if (!file || ::fstat(file.fd, &status) != 0) return std::nullopt;
  std::string trailer(static_cast<std::size_t>(seal_bytes), '\0');
  if (read_at(file, trailer.data(), seal_bytes, status.st_size - seal_bytes) != seal_bytes) trailer.clear();
  return StageManifest::Shard{name, status.st_size, std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec, hexadecimal(trailer)};
}

bool is_copied(const std::string& folder, const StageManifest::Shard& shard) {
  const auto there = shard_at(folder, shard.name);
  return there && there->bytes == shard.bytes && there->seal == shard.seal;
}

std::int64_t StageManifest::bytes() const {
  std::int64_t sum = 0;
  for (const Shard& shard : shards) sum += shard.bytes;
  return sum;
}

std::string StageManifest::text() const {
  std::string text = text_of(first_words, split, "\t", source, "\n");
  for (const Shard& shard : shards) text += text_of(shard.bytes, " ", shard.modified, " ", shard.seal, " ", shard.name, "\n");
  return text;
}

std::string StageManifest::folder_name() const {
  const std::string all = text();
  std::uint64_t hash = 0xcbf29ce484222325;   // FNV-1a, of the shards alone
  for (std::size_t i = all.find('\n') + 1; i < all.size(); ++i) hash = (hash ^ static_cast<unsigned char>(all[i])) * 0x100000001b3;
  char fingerprint[20];
  std::snprintf(fingerprint, sizeof fingerprint, "%016llx", static_cast<unsigned long long>(hash));
  std::string name = fs::path(source + "/").parent_path().filename();
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.') c = '_';
  return text_of(name.substr(0, 64), "-", split, "-", fingerprint);
}

StageManifest read_manifest(const std::string& source, const std::string& split, int threads) {
  StageManifest manifest{.source = source, .split = split, .shards = {}};
  const std::vector<std::string> names = shard_files(source, split);
  in_order(std::ssize(names), threads,
           [&](std::int64_t i) {
             const std::string& name = names[static_cast<std::size_t>(i)];
             auto shard = shard_at(source, name);
             if (!shard || !shard->seal.starts_with(hexadecimal(seal_magic))) verify_seal((fs::path(source) / name).string());   // says what is wrong with it
             require(shard.has_value(), (fs::path(source) / name).string(), ": cannot be read.");
             return *shard;
           },
           [&](std::int64_t, StageManifest::Shard shard) { manifest.shards.push_back(std::move(shard)); });
  return manifest;
}

bool is_manifest(const std::string& text) { return text.starts_with(first_words); }

StageManifest parse_manifest(const std::string& text) {
  StageManifest manifest;
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  const std::size_t tab = line.find('\t', first_words.size());
  require(line.starts_with(first_words) && tab != std::string::npos, "this is no manifest of staged shards.");
  manifest.split = line.substr(first_words.size(), tab - first_words.size()), manifest.source = line.substr(tab + 1);
  while (std::getline(lines, line)) {
    StageManifest::Shard shard;
    std::istringstream words(line);
    require(static_cast<bool>(words >> shard.bytes >> shard.modified >> shard.seal) && words.get() == ' ' && std::getline(words, shard.name) && shard.bytes >= 0, "this manifest of staged shards is damaged.");
    manifest.shards.push_back(std::move(shard));
  }
  return manifest;
}

std::int64_t staged_bytes(const StageManifest& manifest, const std::string& stage) {
  std::int64_t bytes = 0;
  for (const StageManifest::Shard& shard : manifest.shards)
    if (is_copied(fs::path(stage) / manifest.folder_name(), shard)) bytes += shard.bytes;
  return bytes;
}

}  // namespace lockstep
