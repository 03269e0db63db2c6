#include "train/agreement.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "storage/sealed_file.hpp"

namespace lockstep {
namespace {

/// Two lines: the second is told only where the first agrees.
std::string summary(const Dataset& data) {
  std::uint32_t crc = 0;
  for (const ImageRecord& record : data.records()) {
    const std::uint32_t image[] = {record.crc, static_cast<std::uint32_t>(record.label)};
    crc = crc32c(image, sizeof image, crc);
  }
  const ShardHeader& h = data.header();
  std::string classes, numbers;
  for (const std::string& name : h.classes) classes += " " + name;
  for (const auto* of : {&h.mean, &h.std})
    for (const double value : *of) numbers += text_of(" ", value);
  return text_of(h.split, ": ", counted(data.size(), "image"), " in ", counted(std::ssize(data.files()), "shard"), ", contents ", std::hex, crc, std::dec, ", mean and std", numbers, "\n",
                 h.split, ": ", h.classes.size(), " classes:", classes, "\n");
}

std::string text_in(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

void require_same_config(Communicator& comm, const Config& config) { require_same(comm, "the input", to_toml(config)); }

void require_same_shards(Communicator& comm, const Dataset& train, const Dataset* eval) {
  require_same(comm, "the shards", summary(train) + (eval ? summary(*eval) : ""), "Copy the same shards to all nodes, or set data.path to a folder that all nodes share.");
}

std::string warning_of_own_disk(Communicator& comm, const std::string& folder, const std::string& file, const std::string& content) {
  const std::string wanted = comm.broadcast(content, 0);
  const std::vector<std::string> blind = comm.gather(comm.rank() == 0 || text_in(std::filesystem::path(folder) / file) == wanted ? "" : host_name());
  for (std::size_t rank = 0; rank < blind.size(); ++rank)
    if (!blind[rank].empty())
      return text_of("warning: rank ", rank, " on ", blind[rank], " does not see ", folder, " as rank 0 on ", host_name(), " does: a start whose rank 0 is on another node will not find this run. "
                     "Set run.outputs to a folder that all nodes share.");
  return "";
}

}  // namespace lockstep
