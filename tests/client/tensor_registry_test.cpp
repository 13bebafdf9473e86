#include "client/tensor_registry.hpp"

#include "engine_fixture.hpp"

namespace ckpt::client {
namespace {

using testing::HasSubstr;

// A value that C callers can pass and C++ ones cannot.
template <class Enum>
void set_raw(Enum& to, unsigned value) {
  std::memcpy(&to, &value, sizeof(to));
}

class TensorRegistryTest : public testing::Test {
 protected:
  Caught add(ckpt_tensor tensor) {
    return caught([&] { registry_.add(tensor, device_); });
  }
  ckpt_tensor tensor(const char* name) {
    static const std::int64_t shape[] = {2, 3};
    return {sizeof(ckpt_tensor), name, bytes_, shape, 2, CKPT_F32, CKPT_HOST, CKPT_OVERLAPPED};
  }
  std::byte bytes_[24];
  device::HostDevice device_{1};
  TensorRegistry registry_{"rank0", "rank0.private"};
};

TEST_F(TensorRegistryTest, RefusesADuplicateName) {
  EXPECT_EQ(add(tensor("w")).status, CKPT_OK);
  const Caught twice = add(tensor("w"));
  EXPECT_EQ(twice.status, CKPT_ERR_INVALID);
  EXPECT_THAT(twice.sentence, HasSubstr("\"w\" is registered already"));
  registry_.remove("w");
  EXPECT_TRUE(registry_.empty());
  EXPECT_EQ(add(tensor("w")).status, CKPT_OK);
}

TEST_F(TensorRegistryTest, AcceptsANullPointerOnlyForSizeZero) {
  ckpt_tensor null = tensor("w");
  null.data = nullptr;
  EXPECT_THAT(add(null).sentence, HasSubstr("24 bytes but a null pointer"));
  static const std::int64_t none[] = {0, 3};
  null.shape = none;
  EXPECT_EQ(add(null).status, CKPT_OK);
  EXPECT_EQ(add(tensor("v")).status, CKPT_OK);
  EXPECT_THAT(caught([&] { registry_.move("v", nullptr, device_); }).sentence, HasSubstr("null pointer"));
}

TEST_F(TensorRegistryTest, RefusesInvalidTensors) {
  ckpt_tensor bad = tensor("w");
  set_raw(bad.dtype, 99);
  EXPECT_THAT(add(bad).sentence, HasSubstr("unknown dtype"));
  bad = tensor("w");
  set_raw(bad.memory, 7);
  EXPECT_THAT(add(bad).sentence, HasSubstr("unknown kind of memory"));
  bad.memory = CKPT_DEVICE;
  EXPECT_THAT(add(bad).sentence, HasSubstr("no CUDA backend"));
  bad = tensor("w");
  set_raw(bad.capture, 7);
  EXPECT_THAT(add(bad).sentence, HasSubstr("kind of capture"));
  bad = tensor("w");
  bad.shape = nullptr;
  EXPECT_THAT(add(bad).sentence, HasSubstr("0 to 16 extents"));
  bad = tensor("w");
  bad.ndim = 17;
  EXPECT_THAT(add(bad).sentence, HasSubstr("0 to 16 extents"));
  bad = tensor("w");
  static const std::int64_t negative[] = {2, -3}, huge[] = {INT64_MAX, INT64_MAX};
  bad.shape = negative;
  EXPECT_THAT(add(bad).sentence, HasSubstr("an extent is negative"));
  bad.shape = huge;
  EXPECT_THAT(add(bad).sentence, HasSubstr("impossible shape"));
  for (const char* name : {static_cast<const char*>(nullptr), "", "\xc3", "__metadata__"})
    EXPECT_THAT(add(tensor(name)).sentence, HasSubstr("UTF-8"));
  EXPECT_TRUE(registry_.empty());
  EXPECT_THAT(caught([&] { registry_.move("w", bytes_, device_); }).sentence, HasSubstr("not registered"));
  EXPECT_THAT(caught([&] { registry_.remove("w"); }).sentence, HasSubstr("not registered"));
}

TEST_F(TensorRegistryTest, PacksEachShardSeparatelyAndFollowsChanges) {
  add(tensor("b"));
  ckpt_tensor synchronous = tensor("rng");
  synchronous.capture = CKPT_SYNCHRONOUS;
  add(synchronous);
  EXPECT_EQ(registry_.state().main.layout.entries.size(), 1u);
  EXPECT_EQ(registry_.state().private_.layout.entries.size(), 1u);
  const std::uint64_t hash = registry_.state().main.layout_hash;
  std::byte elsewhere[24];
  registry_.move("b", elsewhere, device_);
  EXPECT_EQ(registry_.state().main.plan.sources()[0].data, elsewhere);
  EXPECT_EQ(registry_.state().main.layout_hash, hash);
  add(tensor("a"));
  EXPECT_NE(registry_.state().main.layout_hash, hash);
  EXPECT_EQ(registry_.state().main.plan.sources()[0].data, bytes_);
  EXPECT_EQ(registry_.state().main.plan.sources()[1].data, elsewhere);
}

}  // namespace
}  // namespace ckpt::client
