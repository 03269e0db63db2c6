// fusion: rewrites a graph into fewer nodes: batch_norm (+ add) (+ relu) (+ max_pool) as one, two of them whose sum is rectified as one.  Numbers stay the same to rounding; a test compares both.
#pragma once
#include "graph/graph.hpp"

namespace lockstep {

void fuse(Graph& graph);

}  // namespace lockstep
