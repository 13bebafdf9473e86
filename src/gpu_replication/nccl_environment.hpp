// Refuses GPU replication if environment variables would override the settings of our NCCL communicator. Pure
// functions.
#pragma once

namespace ckpt::device {

// Throws Failure (CKPT_ERR_INVALID) if an environment variable is set that overrides a setting of our communicator. The
// sentence names the variable. `environment` is as in environ(7); null: empty. Once NCCL has started, the environment
// of the process also has the settings from NCCL's configuration files (/etc/nccl.conf).
void refuse_nccl_overrides(const char* const* environment);

}  // namespace ckpt::device
