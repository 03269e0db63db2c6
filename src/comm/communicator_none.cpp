// communicator_none: a build without NCCL.
#include "comm/communicator.hpp"

namespace lockstep {

std::unique_ptr<Communicator> with_gpus(std::unique_ptr<Communicator> ranks, Device&, const std::function<void(const std::string&)>&) { return ranks; }

}  // namespace lockstep
