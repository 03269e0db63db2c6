// exchange_host: CPUs sum by their group's all-reduce.
#include "comm/exchange.hpp"

namespace lockstep {

std::unique_ptr<Exchange> make_direct_exchange(Device&, std::unique_ptr<Communicator>&, std::int64_t) { return nullptr; }

}  // namespace lockstep
