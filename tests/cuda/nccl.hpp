// Helpers for tests with NCCL. They are linked with the test double of NCCL (nccl_double/). If LD_LIBRARY_PATH names
// the folder of a real NCCL, they use that.
#pragma once

#include "gpu.hpp"
#include "gpu_replication/nccl_abi.hpp"
#include "nccl_double/control.h"

namespace ckpt::testing_support {

namespace nccl = device::nccl;

extern "C" {
nccl::GetVersion ncclGetVersion;
nccl::GetErrorString ncclGetErrorString;
nccl::GetUniqueId ncclGetUniqueId;
nccl::CommInitRankConfig ncclCommInitRankConfig;
nccl::CommGetAsyncError ncclCommGetAsyncError;
nccl::CommAbort ncclCommAbort;
nccl::CommRegister ncclCommRegister;
nccl::GroupStart ncclGroupStart;
nccl::GroupEnd ncclGroupEnd;
nccl::Send ncclSend;
nccl::Recv ncclRecv;
}

// The functions that control the test double. With a real NCCL they are null.
struct NcclButtons {
// NOLINTBEGIN(bugprone-macro-parentheses): a declaration
#define CKPT_BUTTON(name)                                                                     \
  decltype(&ckpt_nccl_double_##name) name = Buttons::find<decltype(ckpt_nccl_double_##name)>( \
      "ckpt_nccl_"                                                                            \
      "double_" #name)
  // NOLINTEND(bugprone-macro-parentheses)
  CKPT_BUTTON(reset);
  CKPT_BUTTON(hang);
  CKPT_BUTTON(corrupt);
  CKPT_BUTTON(slow);
  CKPT_BUTTON(hold_launches);
  CKPT_BUTTON(hold_inits);
  CKPT_BUTTON(hold_aborts);
  CKPT_BUTTON(slow_aborts);
  CKPT_BUTTON(fail);
  CKPT_BUTTON(die);
  CKPT_BUTTON(version);
  CKPT_BUTTON(communicators);
  CKPT_BUTTON(aborts);
  CKPT_BUTTON(orphans);
  CKPT_BUTTON(groups);
  CKPT_BUTTON(sent_bytes);
  CKPT_BUTTON(mismatches);
  CKPT_BUTTON(registered_bytes);
  CKPT_BUTTON(max_ctas);
#undef CKPT_BUTTON
};
inline const NcclButtons& nccl_buttons() {
  static const NcclButtons instance;
  return instance;
}

class NcclTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    reset_nccl();
    int version = 0;
    ASSERT_EQ(ncclGetVersion(&version), nccl::success);  // which also makes the linker keep it
  }
  void TearDown() override {
    reset_nccl();
    GpuTest::TearDown();
  }
  static bool has_nccl_buttons() { return nccl_buttons().reset != nullptr; }
  static void reset_nccl() {
    if (has_nccl_buttons()) nccl_buttons().reset();
  }
};

}  // namespace ckpt::testing_support
