// An engine with a fake agent, for tests of the engine.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "client/engine.hpp"
#include "device/host_device.hpp"
#include "fake_agent.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::client {

// A device whose copies begin only when the engine waits for them. So no copy is slower.
class LateDevice : public device::Device {
 public:
  void reach(ckpt_memory memory, const void* data) override { host_.reach(memory, data); }
  void attach(const std::vector<device::Range>&, const device::Owner&) override {}
  void attach_also(const device::Range&, const device::Owner&) override {}
  bool broken() const override { return false; }
  std::string failure() const override { return {}; }
  void start(std::span<const Copy> overlapped, const Copy& synchronous, device::Stream stream) override {
    host_.start({}, synchronous, stream);
    std::copy(overlapped.begin(), overlapped.end(), waiting_.begin());
    count_ = overlapped.size();
  }
  bool release(std::span<const device::Stream> streams, std::int64_t timeout_ms, Done done) override {
    const device::Plan nothing({});
    host_.start(std::span(waiting_).first(std::exchange(count_, 0)), {&nothing, {}}, nullptr);
    return host_.release(streams, timeout_ms, std::move(done));
  }
  void cancel() override { count_ = 0; }
  std::optional<std::size_t> load(const device::Plan& plan, device::ConstPacked from, device::Stream stream) override {
    return host_.load(plan, from, stream);
  }
  std::optional<std::size_t> verify(const device::Plan& plan, const std::uint64_t* digests,
                                    device::Stream stream) override {
    return host_.verify(plan, digests, stream);
  }

 private:
  device::HostDevice host_{1};
  std::array<Copy, device::plans_max> waiting_{};
  std::size_t count_ = 0;
};

struct Caught {
  ckpt_status status = CKPT_OK;
  std::string sentence;
};
inline Caught caught(const std::function<void()>& call) {
  try {
    call();
  } catch (const Failure& failure) {
    return {failure.status(), failure.what()};
  }
  return {};
}

// A tensor with memory of its own.
struct TestTensor {
  std::string name;
  ckpt_dtype dtype = CKPT_U8;
  std::vector<std::int64_t> shape;
  ckpt_capture capture = CKPT_OVERLAPPED;
  std::vector<std::byte> bytes;

  ckpt_tensor abi() {
    return {
        sizeof(ckpt_tensor), name.c_str(), bytes.data(), shape.data(), static_cast<std::int32_t>(shape.size()), dtype,
        CKPT_HOST,           capture};
  }
  void fill(std::uint64_t seed) {
    std::uint64_t state = seed * 0x9e3779b97f4a7c15ull + std::hash<std::string>()(name);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>((state = state * 6364136223846793005ull + 1) >> 56);
  }
};
inline TestTensor test_tensor(std::string name, ckpt_dtype dtype, std::vector<std::int64_t> shape,
                              ckpt_capture capture = CKPT_OVERLAPPED) {
  TestTensor tensor{std::move(name), dtype, std::move(shape), capture, {}};
  tensor.bytes.resize(arena::tensor_bytes(dtype, tensor.shape).value());
  return tensor;
}

// Collects the warnings of an engine. The engine must not outlive it.
class WarningLog {
 public:
  explicit WarningLog(Engine& engine) {
    engine.on_warning([](ckpt_warning warning, const char* text,
                         void* user) { static_cast<WarningLog*>(user)->texts_[warning] += text; },
                      this);
  }
  // Those of one kind since it was asked before; "" if there were none.
  std::string take(ckpt_warning warning) { return std::exchange(texts_[warning], {}); }

 private:
  std::map<ckpt_warning, std::string> texts_;
};

class EngineTest : public testing::Test {
 protected:
  EngineTest() { agent_.emplace(directory_.path()); }

  Options options(const OptionPairs& more = {}) const {
    OptionPairs pairs = {{"job", "job"},
                         {"rank", "0"},
                         {"world_size", world_size_},
                         {"node", "node"},
                         {"agent", "attach"},
                         {"arena_dir", directory_.path()},
                         {"restore_timeout_ms", "5000"}};
    for (const auto& option : more) std::erase_if(pairs, [&](const auto& pair) { return pair.first == option.first; });
    pairs.insert(pairs.end(), more.begin(), more.end());
    return parse_options(Reader::engine, pairs, nullptr);
  }

  template <class Device = device::HostDevice, class... Arguments>
  std::unique_ptr<Engine> engine(const OptionPairs& more = {}, Arguments... arguments) const {
    return std::make_unique<Engine>(options(more), std::make_unique<Device>(arguments...));
  }
  std::unique_ptr<Engine> host_engine(const OptionPairs& more = {}) const {
    return engine<device::HostDevice>(more, 2u);
  }

  static void register_all(Engine& engine, std::vector<TestTensor>& tensors) {
    for (TestTensor& tensor : tensors) engine.register_tensor(tensor.abi());
  }
  static ckpt_restored restore(Engine& engine) { return engine.restore(); }
  // The bytes that the agent has of one tensor, by the stored layout.
  std::vector<std::byte> stored(const std::string& name, CheckpointId checkpoint) {
    for (const char* shard : {"rank0", "rank0.private"}) {
      const auto piece = agent_->piece(shard, checkpoint);
      if (!piece) continue;
      for (const auto& entry : arena::parse_layout(piece->manifest.layout).entries) {
        const auto begin = piece->bytes.begin() + static_cast<std::ptrdiff_t>(entry.offset_bytes);
        if (entry.name == name) return {begin, begin + static_cast<std::ptrdiff_t>(entry.size_bytes)};
      }
    }
    ADD_FAILURE() << name << " is not stored";
    return {};
  }

  std::string world_size_ = "1";
  test::TemporaryDirectory directory_{test::in_memory};
  std::optional<FakeAgent> agent_;
};

}  // namespace ckpt::client
