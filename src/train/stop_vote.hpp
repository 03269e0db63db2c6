// stop_vote: what any rank wants between two steps, known to all of them, without a wait.
#pragma once
#include "comm/communicator.hpp"

namespace lockstep {

enum class Wish : int { go_on = 0, save = 1, stop = 2 };  // the strongest wish wins

class StopVote {
 public:
  /// delay: how many boundaries later the answer is read.
  StopVote(Communicator& comm, int delay) : comm_(comm), delay_(delay) {}
  ~StopVote() {
    if (is_open_) comm_.finish_agree();
  }
  StopVote(const StopVote&) = delete;
  StopVote& operator=(const StopVote&) = delete;

  /// Collective: every rank calls it at the same boundaries.  The strongest wish that was handed in `delay` boundaries ago.
  Wish ask(Wish mine) {
    strongest_ = strongest_ > mine ? strongest_ : mine;
    Wish answer = Wish::go_on;
    if (is_open_ && ++age_ >= delay_) {
      answer = static_cast<Wish>(comm_.finish_agree());
      is_open_ = false;
    }
    if (!is_open_) {
      comm_.start_agree(static_cast<int>(strongest_));
      strongest_ = Wish::go_on, age_ = 0, is_open_ = true;
    }
    return answer;
  }

 private:
  Communicator& comm_;
  int delay_, age_ = 0;
  bool is_open_ = false;
  Wish strongest_ = Wish::go_on;
};

}  // namespace lockstep
