// What NCCL's environment asks of every communicator in the process, ours too. Pure.
#pragma once

namespace ckpt::device {

// Throws Failure (CKPT_ERR_INVALID), in one sentence that names the variable, where one is set that overrides what our
// communicator asks for. `environment` is as in environ(7), or null for none; NCCL puts there what its configuration
// files (/etc/nccl.conf) say, once it has started.
void refuse_nccl_overrides(const char* const* environment);

}  // namespace ckpt::device
