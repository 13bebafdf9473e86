// An engine that the C ABI made, over an agent that a test plays.
#pragma once

#include "ckptengine/ckptengine.h"
#include "engine_fixture.hpp"

namespace ckpt::client {

class CApiEngineTest : public EngineTest {
 protected:
  CApiEngineTest() {
    const std::string& directory = directory_.path();
    const ckpt_option options[] = {{"job", "job"},   {"rank", "0"},       {"world_size", "1"},
                                   {"node", "node"}, {"agent", "attach"}, {"arena_dir", directory.c_str()}};
    EXPECT_EQ(ckpt_create(options, std::size(options), &engine_), CKPT_OK) << ckpt_last_error();
    const ckpt_tensor main = weight_.abi(), synchronous = rng_.abi();
    EXPECT_EQ(ckpt_register_tensor(engine_, &main), CKPT_OK);
    EXPECT_EQ(ckpt_register_tensor(engine_, &synchronous), CKPT_OK);
    EXPECT_EQ(ckpt_restore(engine_, CKPT_NO_STREAM, &restored_), CKPT_OK) << ckpt_last_error();
  }
  ~CApiEngineTest() override { ckpt_close(engine_); }

  TestTensor weight_ = test_tensor("weight", CKPT_F32, {1000, 300});
  TestTensor rng_ = test_tensor("rng", CKPT_U8, {5000}, CKPT_SYNCHRONOUS);
  ckpt_engine* engine_ = nullptr;
  ckpt_restored restored_ = CKPT_RESTORED_INIT;
};

}  // namespace ckpt::client
