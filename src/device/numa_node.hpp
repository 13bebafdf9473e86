// Puts host memory onto the NUMA node that is closest to a GPU. Copies between the GPU and memory of another node go
// through the link between the nodes, which all processes share. Thread-safe.
#pragma once

#include <cuda.h>

#include <string>

#include "device/device.hpp"

namespace ckpt::device {

// Returns the number of the NUMA node closest to the device. -1 if there is only one, or if the driver cannot tell.
int closest_numa_node(CUdevice device);

// Moves the pages of the range to a NUMA node, and lets the kernel take pages that are still missing from there. Pages
// stay where they are if another process has them mapped, too, or if the node has no memory free. Must be called before
// the range is pinned, because pinned pages cannot move. Returns an empty string, or the kernel's reason for a refusal.
std::string move_to_numa_node(const Range& range, int node);

}  // namespace ckpt::device
