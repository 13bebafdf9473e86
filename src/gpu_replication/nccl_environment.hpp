// Refuses GPU replication if environment variables would override the settings of our NCCL communicator. Pure
// functions.
#pragma once

namespace ckpt::device {

// Throws Failure (CKPT_ERR_INVALID) with a sentence that names the variable, if one is set that overrides what our
// communicator asks for. `environment` is as in environ(7), or null for none. Once NCCL has started, it also has the
// settings of NCCL's configuration files (/etc/nccl.conf).
void refuse_nccl_overrides(const char* const* environment);

}  // namespace ckpt::device
