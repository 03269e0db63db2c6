// launch: what all ranks find out about each other once, at start: where they run, and whether they run the same thing.
#include <sched.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "comm/communicator.hpp"

namespace lockstep {
namespace {

/// CPUs that this process may run on; none where they are not known.
std::vector<int> usable_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
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

/// A rank that sees no GPU comes before one whose GPUs others have; empty if each rank has one.
std::string complaint_of(const std::vector<std::vector<std::string>>& gpus, const std::vector<int>& chosen, const std::vector<std::string>& hosts,
                         const std::vector<std::string>& reasons) {
  for (std::size_t r = 0; r < gpus.size(); ++r)
    if (gpus[r].empty()) return text_of("rank ", r, " on ", hosts[r], ": ", reasons[r]);
  const auto found = std::ranges::find(chosen, -1);
  if (found == chosen.end()) return "";
  const auto rank = static_cast<std::size_t>(found - chosen.begin());
  std::vector<int> owners;
  for (std::size_t r = 0; r < gpus.size(); ++r)
    if (chosen[r] >= 0 && std::ranges::find(gpus[rank], gpus[r][static_cast<std::size_t>(chosen[r])]) != gpus[rank].end()) owners.push_back(static_cast<int>(r));
  return text_of("rank ", rank, " on ", hosts[rank], " has no GPU of its own: it sees ", counted(std::ssize(gpus[rank]), "GPU"), ", taken by rank ", ranges(owners),
                 ". Start at most as many ranks on a node as it has GPUs (--ntasks-per-node), and ask for one GPU a task (--gpus-per-task=1) or for all of the "
                 "node's; a CUDA_VISIBLE_DEVICES must name as many.");
}

}  // namespace

std::string describe_places(const std::vector<RankPlace>& ranks) {
  struct Host {
    std::vector<int> ranks;
    std::set<int> cpus;                                     // of all its ranks together
    int threads = 0;
  };
  std::map<std::string, Host> hosts;
  std::vector<std::string> order;                           // of the lines, by their first rank
  std::map<std::string, std::vector<int>> lines;            // "host threads CPUs" -> its ranks
  const auto line_of = [](const RankPlace& place) { return text_of(place.host, ' ', place.threads, ' ', place.cpus.size()); };
  for (int r = 0; r < std::ssize(ranks); ++r) {
    const RankPlace& place = ranks[static_cast<std::size_t>(r)];
    Host& host = hosts[place.host];
    host.ranks.push_back(r), host.cpus.insert(place.cpus.begin(), place.cpus.end()), host.threads += place.threads;
    std::vector<int>& alike = lines[line_of(place)];
    if (alike.empty()) order.push_back(line_of(place));
    alike.push_back(r);
  }
  std::string out;
  for (const std::string& line : order) {
    const std::vector<int>& alike = lines[line];
    const RankPlace& place = ranks[static_cast<std::size_t>(alike[0])];
    const int threads = place.threads, cpus = static_cast<int>(place.cpus.size());
    out += text_of(out.empty() ? "" : "\n", alike.size() > 1 ? "ranks " : "rank ", ranges(alike), ": ", place.host, ", ", counted(threads, "thread"), alike.size() > 1 ? " each" : "");
    const Host& host = hosts[place.host];
    const int all = static_cast<int>(host.cpus.size()), count = static_cast<int>(host.ranks.size()), right = all / count;
    if (cpus == 0) continue;
    if (threads > cpus) out += text_of(", bound to ", counted(cpus, "CPU"), ": slow; use srun --cpus-per-task or mpirun --bind-to none, or fewer threads");
    else if (host.threads > all)
      out += text_of(": warning: the ", host.threads, " threads of ", counted(count, "rank"), " on ", counted(all, "CPU"), " of ", place.host, " are slow; ",
                     right >= 1 ? text_of("set OMP_NUM_THREADS=", right) : text_of("start at most ", counted(all, "rank"), " there"));
  }
  return out;
}

std::string describe_ranks(Communicator& comm, int threads) {
  std::string mine = text_of(host_name(), ' ', threads);
  for (const int cpu : usable_cpus()) mine += text_of(' ', cpu);
  std::vector<RankPlace> places;
  for (const std::string& told : comm.gather(mine)) {
    RankPlace& place = places.emplace_back();
    std::istringstream words(told);
    words >> place.host >> place.threads;
    for (int cpu = 0; words >> cpu;) place.cpus.push_back(cpu);
  }
  return describe_places(places);
}

std::vector<int> assign_gpus(const std::vector<std::vector<std::string>>& gpus) {
  std::vector<int> chosen(gpus.size(), -1);
  std::map<std::string, std::size_t> taken;                 // by which rank
  std::set<std::string> tried;
  // A free one, or one whose rank can take another.
  const std::function<bool(std::size_t)> find = [&](std::size_t rank) {
    const std::vector<std::string>& seen = gpus[rank];
    const auto take = [&](std::size_t i) { return taken[seen[i]] = rank, chosen[rank] = static_cast<int>(i), true; };
    for (std::size_t i = 0; i < seen.size(); ++i)
      if (!taken.contains(seen[i])) return take(i);
    for (std::size_t i = 0; i < seen.size(); ++i)
      if (tried.insert(seen[i]).second && find(taken.at(seen[i]))) return take(i);
    return false;
  };
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) tried.clear(), find(rank);
  return chosen;
}

int choose_gpu(Communicator& comm, const VisibleGpus& visible) {
  std::string places;
  for (const std::string& place : visible.places) places += place + "\n";
  const std::vector<std::string> told = comm.gather(places), reasons = comm.gather(visible.reason), hosts = comm.gather(host_name());
  std::vector<int> chosen(static_cast<std::size_t>(comm.size()));
  std::string complaint;
  if (comm.rank() == 0) {
    std::vector<std::vector<std::string>> gpus(told.size());
    for (std::size_t r = 0; r < told.size(); ++r) {
      std::istringstream lines(told[r]);
      for (std::string place; std::getline(lines, place);) gpus[r].push_back(hosts[r] + " " + place);
    }
    chosen = assign_gpus(gpus);
    complaint = complaint_of(gpus, chosen, hosts, reasons);
  }
  complaint = comm.broadcast(complaint, 0);
  require(complaint.empty(), complaint);
  comm.broadcast(chosen.data(), chosen.size() * sizeof(int), 0);
  return chosen[static_cast<std::size_t>(comm.rank())];
}

void require_same(Communicator& comm, const std::string& what, const std::string& text, const std::string& advice) {
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
      complaint = text_of("the ranks differ in ", what, ". Rank 0 on ", hosts[0], ": ", first_line_that_differs(texts[0], other), "; rank ",
                          ranges(others), " on ", list, ": ", first_line_that_differs(other, texts[0]),
                          ". ", advice);
    }
  }
  complaint = comm.broadcast(complaint, 0);
  require(complaint.empty(), complaint);
}

}  // namespace lockstep
