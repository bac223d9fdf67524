// The read queue that asks the kernel's io_uring: see read_queue.hpp.
#pragma once

#include <memory>

#include "engine/base/read_queue.hpp"

namespace kalibri {

/// Null where the kernel does not allow it.
std::unique_ptr<ReadQueue> make_uring_queue(ReadQueue::Done done);

}  // namespace kalibri
