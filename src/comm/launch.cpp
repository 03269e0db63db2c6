// launch: what all ranks find out about each other once, at start: where they run, and whether they run the same thing.
#include <sched.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "comm/communicator.hpp"

namespace lockstep {
namespace {

/// CPUs that this process may run on; a launcher's binding can leave it one.
int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

/// "0-3, 6" of {0, 1, 2, 3, 6}.
std::string ranges(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += text_of(text.empty() ? "" : ", ", ranks[i]);
    if (last > i) text += text_of("-", ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string first_line_that_differs(const std::string& text, const std::string& other) {
  std::istringstream lines(text), others(other);
  std::string line, another;
  while (true) {
    const bool has_line = static_cast<bool>(std::getline(lines, line)), has_other = static_cast<bool>(std::getline(others, another));
    if (!has_line) return "(it ends here)";
    if (!has_other || line != another) return line;
  }
}

}  // namespace

std::string describe_ranks(Communicator& comm, int threads) {
  const std::vector<std::string> told = comm.gather(text_of(host_name(), ' ', threads, ' ', usable_cpus()));
  if (comm.rank() != 0) return "";
  std::vector<std::string> order;                           // "host threads cpus" in the order of its first rank
  std::map<std::string, std::vector<int>> ranks;
  for (int r = 0; r < comm.size(); ++r) {
    const std::string& line = told[static_cast<std::size_t>(r)];
    if (ranks[line].empty()) order.push_back(line);
    ranks[line].push_back(r);
  }
  std::ostringstream out;
  for (const std::string& line : order) {
    std::string host;
    int each = 0, cpus = 0;
    std::istringstream(line) >> host >> each >> cpus;
    const std::vector<int>& mine = ranks[line];
    out << (line == order.front() ? "" : "\n") << (mine.size() > 1 ? "ranks " : "rank ") << ranges(mine) << ": " << host << ", " << counted(each, "thread") << (mine.size() > 1 ? " each" : "");
    if (each > cpus && cpus > 0)
      out << ", bound to " << counted(cpus, "CPU") << ": slow; use srun --cpus-per-task or mpirun --bind-to none, or fewer threads";
  }
  return out.str();
}

void require_same(Communicator& comm, const std::string& what, const std::string& text) {
  const std::vector<std::string> texts = comm.gather(text), hosts = comm.gather(host_name());
  std::string complaint;
  if (comm.rank() == 0) {
    std::vector<int> others;
    std::vector<std::string> names;
    for (int r = 0; r < comm.size(); ++r) {
      const std::size_t i = static_cast<std::size_t>(r);
      if (texts[i] == texts[0]) continue;
      others.push_back(r);
      if (std::find(names.begin(), names.end(), hosts[i]) == names.end()) names.push_back(hosts[i]);
    }
    if (!others.empty()) {
      const std::string& other = texts[static_cast<std::size_t>(others[0])];
      std::string list;
      for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
      complaint = text_of(what, " is not the same on all ranks. Rank 0 on ", hosts[0], ": ", first_line_that_differs(texts[0], other), "; rank ",
                          ranges(others), " on ", list, ": ", first_line_that_differs(other, texts[0]),
                          ". Give all ranks the same program, input file and arguments (a folder that all nodes share does).");
    }
  }
  complaint = comm.broadcast(complaint, 0);
  require(complaint.empty(), complaint);
}

}  // namespace lockstep
