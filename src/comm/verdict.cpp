#include "comm/verdict.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "base/error.hpp"

namespace lockstep {
namespace {

const Sight& at(std::span<const Sight> ranks, int r) { return ranks[static_cast<std::size_t>(r)]; }

double limit_of(const Beat& beat, const Limits& limits) {
  if (beat.phase != Phase::starting && beat.phase != Phase::warm_up) return limits.stall_seconds;
  return limits.start_seconds > 0 ? limits.start_seconds : std::numeric_limits<double>::infinity();
}

/// How far a rank has come; collective calls count first, as they are what the others wait in.
auto place(const Beat& beat) { return std::tuple(beat.calls, beat.step); }

/// None while all are heard; else also those that fell silent after the first: the job waits for all of them.
std::vector<int> silent_ranks(int me, std::span<const Sight> ranks, const Limits& limits) {
  const double limit = limits.is_ending ? 2 * limits.news_seconds : std::max(limits.stall_seconds, 2 * limits.news_seconds);
  std::vector<int> silent;
  bool is_over = false;
  for (int r = 0; r < std::ssize(ranks); ++r) {
    if (r == me || at(ranks, r).silent_seconds < std::min(limit, 1.5 * limits.news_seconds)) continue;
    silent.push_back(r);
    is_over = is_over || at(ranks, r).silent_seconds >= limit;
  }
  return is_over ? silent : std::vector<int>();
}

/// The ranks furthest behind of those that are not on their way out.
std::vector<int> ranks_behind(std::span<const Sight> ranks) {
  std::vector<int> behind;
  for (int r = 0; r < std::ssize(ranks); ++r) {
    if (at(ranks, r).beat.is_leaving) continue;
    if (!behind.empty() && place(at(ranks, r).beat) < place(at(ranks, behind[0]).beat)) behind.clear();
    if (behind.empty() || place(at(ranks, r).beat) == place(at(ranks, behind[0]).beat)) behind.push_back(r);
  }
  return behind;
}

double idle_now(const Sight& sight) { return sight.beat.idle_seconds + sight.silent_seconds; }

}  // namespace

std::optional<Verdict> judge(int me, std::span<const Sight> ranks, const Limits& limits) {
  // A job that goes on is never ended: when this rank has just been released from a long wait, what it knows of the others is old.
  if (at(ranks, me).beat.idle_seconds < std::min(limits.stall_seconds, 2 * limits.news_seconds)) return std::nullopt;
  if (std::vector<int> silent = silent_ranks(me, ranks, limits); !silent.empty()) return Verdict{std::move(silent), true, false};
  std::vector<int> behind = ranks_behind(ranks);
  const auto has_halted = [&](int r) { return at(ranks, r).beat.idle_seconds >= limit_of(at(ranks, r).beat, limits); };
  if (behind.empty() || !std::all_of(behind.begin(), behind.end(), has_halted)) return std::nullopt;
  const bool is_tie = ranks.size() > 1 && behind.size() == ranks.size();
  if (is_tie) {                                             // the first to halt is the likeliest; news is a second old or two
    double longest = 0;
    for (const int r : behind) longest = std::max(longest, idle_now(at(ranks, r)));
    std::erase_if(behind, [&](int r) { return idle_now(at(ranks, r)) < longest - 2; });
  }
  return Verdict{std::move(behind), false, is_tie};
}

std::string describe(const Verdict& verdict, std::span<const Sight> ranks, std::span<const std::string> hosts) {
  constexpr std::size_t shown = 8;
  std::string who;
  for (std::size_t i = 0; i < std::min(verdict.ranks.size(), shown); ++i) {
    const Sight& s = at(ranks, verdict.ranks[i]);
    const double seconds = std::round(verdict.is_silent ? s.silent_seconds : idle_now(s));
    who += text_of(i ? "; " : "", "rank ", verdict.ranks[i], " on ", hosts[static_cast<std::size_t>(verdict.ranks[i])], " (step ", s.beat.step, ", ",
                   name_of(s.beat.phase), ", ", seconds, verdict.is_silent ? " s silent)" : " s without progress)");
  }
  if (verdict.ranks.size() > shown) who += text_of("; and ", verdict.ranks.size() - shown, " more");
  if (verdict.is_silent)
    return "no message comes any more from " + who + ": the process was stopped or has died, or its host or network is lost. The job ends (run.stall_seconds).";
  if (verdict.is_tie)
    return "no rank makes progress, and none is behind the others; the first to halt: " + who +
           ". Look at the network and at the devices. The job ends (run.stall_seconds, run.start_seconds).";
  return text_of("no progress: ", who, verdict.ranks.size() < ranks.size() ? ". It answers, and the others wait for it" : "",
                 ". Look at its file system and its device, or raise the limit. The job ends (run.stall_seconds, run.start_seconds).");
}

int turn_to_report(const Verdict& verdict, int me, int size) {
  const auto is_blamed = [&](int r) { return std::find(verdict.ranks.begin(), verdict.ranks.end(), r) != verdict.ranks.end(); };
  int turn = 0;
  for (int r = 0; r < size; ++r)
    if (std::pair(is_blamed(r), r) < std::pair(is_blamed(me), me)) ++turn;
  return turn;
}

}  // namespace lockstep
