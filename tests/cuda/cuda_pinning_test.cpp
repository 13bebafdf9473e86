// What the device pins, and when it lets it go: who keeps the memory mapped, on which thread, and what follows if the
// driver refuses.
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "cuda_device_fixture.hpp"
#include "device/cuda_copy.hpp"

namespace ckpt::device {
namespace {

using testing::HasSubstr;

class CudaPinningTest : public CudaDeviceTest {
 protected:
  void SetUp() override {
    if (!has_buttons()) GTEST_SKIP() << "a real driver has no buttons";
    CudaDeviceTest::SetUp();
  }
  static bool are_pinned(std::uint64_t registrations) {
    return eventually([=] { return buttons().registrations() == registrations; });
  }
};

// Address space for a slot that takes several registrations. Nobody touches its pages.
class LargeSlot {
 public:
  explicit LargeSlot(std::size_t size_bytes)
      : size_bytes_(size_bytes), memory_(::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, flags, -1, 0)) {}
  ~LargeSlot() { ::munmap(memory_, size_bytes_); }
  LargeSlot(const LargeSlot&) = delete;
  LargeSlot& operator=(const LargeSlot&) = delete;
  Range range() const { return {static_cast<std::byte*>(memory_), size_bytes_}; }
  std::uint64_t pieces() const {
    std::uint64_t count = 0;
    cut_as_pinned(memory_, size_bytes_, [&](std::size_t, std::size_t) { ++count; });
    return count;
  }

 private:
  static constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  const std::size_t size_bytes_;
  void* const memory_;
};

// The kernel's policy for a page: from which nodes it takes the page.
struct Policy {
  int mode = -1;
  unsigned long nodes = 0;
  bool operator==(const Policy&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Policy& policy) {
  return out << "mode " << policy.mode << ", nodes " << policy.nodes;
}

Policy policy_of(const void* page) {
  Policy policy;
  std::array<unsigned long, 16> nodes{};
  EXPECT_EQ(::syscall(SYS_get_mempolicy, &policy.mode, nodes.data(), 8 * sizeof(nodes), page, MPOL_F_ADDR), 0);
  policy.nodes = nodes[0];
  return policy;
}

TEST_F(CudaPinningTest, MovesSlotsToTheGpusNumaNode) {
  for (const int node : {-1, 0}) {
    buttons().numa_node(node);
    const Slot slot(overlapped_->plan());
    CudaDevice device(0, small_staging);
    attach(device, {slot.range()});
    EXPECT_EQ(policy_of(slot.data()), node == 0 ? (Policy{MPOL_PREFERRED, 1}) : (Policy{MPOL_DEFAULT, 0}));
    EXPECT_EQ(device.take_news(), std::nullopt);
  }
}

// No machine has a node of this number.
TEST_F(CudaPinningTest, WarnsOnceOfARefusedNumaNodeAndStillPins) {
  buttons().numa_node(900);
  const auto before = buttons().registrations();
  CudaDevice device(0, small_staging);
  attach(device, {slot_->range(), private_slot_->range()});
  EXPECT_EQ(buttons().registrations(), before + 2);
  EXPECT_FALSE(device.broken());
  EXPECT_THAT(device.take_news().value_or(""), HasSubstr("NUMA node 900"));
  const Slot another(overlapped_->plan());
  attach(device, {another.range()});
  EXPECT_EQ(device.take_news(), std::nullopt);
}

TEST_F(CudaPinningTest, PinsAndUnpinsItsRanges) {
  const auto before = buttons().registrations();
  {
    CudaDevice device(0, small_staging);
    attach(device, {slot_->range(), private_slot_->range()});
    EXPECT_EQ(buttons().registrations(), before + 2);
    attach(device, {slot_->range()});
    EXPECT_TRUE(are_pinned(before + 1));
    attach(device, {});
    EXPECT_TRUE(are_pinned(before));
    attach(device, {slot_->range()});
    EXPECT_EQ(buttons().registrations(), before + 1);
  }
  EXPECT_EQ(buttons().registrations(), before);
}

TEST_F(CudaPinningTest, PinsPreparedRangesOnce) {
  CudaDevice device(0, small_staging);
  const auto before = buttons().registrations();
  buttons().hold_registrations(1);
  std::thread([&] { device.prepare({slot_->range()}, nullptr); }).join();  // returns all the same
  buttons().hold_registrations(0);
  EXPECT_TRUE(are_pinned(before + 1));
  attach(device, {slot_->range(), private_slot_->range()});
  EXPECT_EQ(buttons().registrations(), before + 2);
  EXPECT_FALSE(device.broken());
}

TEST_F(CudaPinningTest, CallersThreadPinsAndUnpinsNothing) {
  CudaDevice device(0, small_staging);
  const auto registrations = buttons().registrations();
  const auto registered = buttons().registered_here(), freed = buttons().freed_here();
  device.attach({slot_->range()}, nullptr);
  device.attach_also(private_slot_->range(), nullptr);
  EXPECT_TRUE(device.wait_until_attached(Deadline::in_ms(50'000)));
  device.attach({}, nullptr);
  EXPECT_TRUE(are_pinned(registrations));
  EXPECT_EQ(buttons().registered_here(), registered);
  EXPECT_EQ(buttons().freed_here(), freed);
}

TEST_F(CudaPinningTest, RangeStaysMappedUntilItIsUnpinned) {
  const auto before = buttons().registrations();
  std::atomic<std::uint64_t> pinned_when_unmapped{before + 100};
  const auto unmap = [&](const void*) { pinned_when_unmapped = buttons().registrations(); };
  {
    CudaDevice device(0, small_staging);
    for (const bool is_added : {false, true}) {
      if (is_added) {
        device.attach_also(slot_->range(), Owner(slot_.get(), unmap));
        EXPECT_TRUE(device.wait_until_attached(Deadline::in_ms(50'000)));
      } else {
        attach(device, {slot_->range()}, Owner(slot_.get(), unmap));
      }
      EXPECT_EQ(buttons().registrations(), before + 1);
      EXPECT_EQ(pinned_when_unmapped, before + 100) << "the device alone keeps it mapped";
      attach(device, {});
      EXPECT_TRUE(eventually([&] { return pinned_when_unmapped != before + 100; }));
      EXPECT_EQ(pinned_when_unmapped, before);
      pinned_when_unmapped = before + 100;
    }
    attach(device, {slot_->range()}, Owner(slot_.get(), unmap));
  }
  EXPECT_EQ(pinned_when_unmapped, before) << "a device that ends unpins first, too";
}

TEST_F(CudaPinningTest, LateCopyKeepsItsRangesPinnedUntilItEnds) {
  const Slot other(overlapped_plan_);
  std::atomic<bool> may_land{false}, was_written{false}, is_unmapped{false};
  Owner mapping(slot_.get(), [&](const void*) {
    was_written = !may_land;
    is_unmapped = true;
  });
  CudaDevice device(0, small_staging, {.drain_timeout_ms = 20});
  attach(device, {slot_->range(), private_slot_->range()}, mapping);
  mapping.reset();
  const auto pinned = buttons().registrations();
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  start(device, nullptr);
  device.cancel();
  attach(device, {other.range()});
  EXPECT_EQ(buttons().registrations(), pinned + 1);
  may_land = true;
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  EXPECT_TRUE(eventually([&] { return !device.broken(); }));
  EXPECT_TRUE(are_pinned(pinned - 1));
  EXPECT_TRUE(eventually([&] { return is_unmapped.load(); }));
  EXPECT_FALSE(was_written);
}

TEST_F(CudaPinningTest, RangeWantedAgainBeforeUnpinningStaysPinned) {
  const auto device = this->device(small_staging, {.drain_timeout_ms = 20});
  const auto pinned = buttons().registrations();
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  start(*device, nullptr);
  device->cancel();
  attach(*device, {});
  attach(*device, {slot_->range(), private_slot_->range()});
  EXPECT_EQ(buttons().registrations(), pinned);
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  EXPECT_TRUE(eventually([&] { return !device->broken(); })) << device->failure();
}

TEST_F(CudaPinningTest, PinsALargeSlotInPiecesWithProgress) {
  const LargeSlot slot(3 * pin_max_bytes);
  const auto before = buttons().registrations();
  {
    CudaDevice device(0, small_staging);
    buttons().hold_registrations(1);
    device.attach({slot.range()}, nullptr);
    EXPECT_THAT(device.attaching(), HasSubstr("0 % of it is pinned"));
    buttons().let_registrations(1);
    EXPECT_TRUE(are_pinned(before + 1));
    EXPECT_FALSE(device.wait_until_attached(Deadline::in_ms(0)));
    buttons().let_registrations(1);
    EXPECT_TRUE(are_pinned(before + 2));
    EXPECT_TRUE(eventually([&] { return device.attaching() >= "33"; })) << device.attaching();
    EXPECT_THAT(device.attaching(), HasSubstr("% of it is pinned"));
    buttons().hold_registrations(0);
    EXPECT_TRUE(device.wait_until_attached(Deadline::in_ms(50'000)));
    EXPECT_EQ(buttons().registrations(), before + slot.pieces());
    EXPECT_LE(buttons().largest_registration(), pin_max_bytes);
  }
  EXPECT_EQ(buttons().registrations(), before);
}

TEST_F(CudaPinningTest, EndedDevicePinsNoFurtherPiece) {
  const LargeSlot slot(20'000 * pin_max_bytes);  // there is a pause of a millisecond after each piece
  const auto before = buttons().registrations(), registered = buttons().registered();
  auto device = std::make_unique<CudaDevice>(0, small_staging);
  device->attach({slot.range()}, nullptr);
  EXPECT_TRUE(eventually([&] { return buttons().registered() > registered; }));
  device.reset();
  EXPECT_LT(buttons().registered(), registered + slot.pieces());
  EXPECT_EQ(buttons().registrations(), before);
}

TEST_F(CudaPinningTest, ReportsTheDriversRefusalToPin) {
  CudaDevice device(0, small_staging);
  buttons().refuse_registration(CUDA_ERROR_NOT_PERMITTED);
  attach(device, {slot_->range()});
  EXPECT_TRUE(device.broken());
  EXPECT_THAT(device.failure(), HasSubstr("CUDA_ERROR_NOT_PERMITTED"));
  EXPECT_THAT(device.failure(), HasSubstr("tries again"));
  buttons().refuse_registration(0);
  attach(device, {slot_->range()});
  EXPECT_FALSE(device.broken());
}

TEST_F(CudaPinningTest, RecoversFromATemporaryRefusalAndReportsItOnce) {
  CudaDevice device(0, small_staging,
                    {.retries = {.first_pause_ms = 1, .longest_pause_ms = 4, .refusals_max = 100'000}});
  const auto refusals = buttons().refused_registrations();
  buttons().refuse_registration(CUDA_ERROR_NOT_PERMITTED);
  attach(device, {slot_->range(), private_slot_->range()});
  EXPECT_TRUE(eventually([&] { return buttons().refused_registrations() > refusals + 2; }));
  EXPECT_TRUE(device.broken());
  EXPECT_EQ(device.take_news(), std::nullopt);
  buttons().refuse_registration(0);
  EXPECT_TRUE(eventually([&] { return !device.broken(); }));
  EXPECT_THAT(device.take_news().value_or(""), HasSubstr("is pinned for the GPU now"));
  EXPECT_EQ(device.take_news(), std::nullopt);
  const auto bytes = overlapped_->fill(2);
  start(device, nullptr);
  ASSERT_TRUE(release(device, {nullptr})) << device.failure();
  ASSERT_EQ(outcome(), 1);
  slot_->expect_holds(bytes);
}

TEST_F(CudaPinningTest, GivesUpAfterManyRefusalsUntilNewRanges) {
  CudaDevice device(0, small_staging, {.retries = {.first_pause_ms = 1, .longest_pause_ms = 1, .refusals_max = 3}});
  const auto refusals = buttons().refused_registrations();
  buttons().refuse_registration(CUDA_ERROR_NOT_PERMITTED);
  attach(device, {slot_->range()});
  EXPECT_TRUE(eventually([&] { return device.failure().find("gave up after 3 tries") != std::string::npos; }));
  EXPECT_EQ(buttons().refused_registrations(), refusals + 3);
  buttons().refuse_registration(0);
  EXPECT_TRUE(device.broken());
  attach(device, {slot_->range(), private_slot_->range()});
  EXPECT_FALSE(device.broken());
}

TEST_F(CudaPinningTest, GrowingStateFreesNothingOnTheCallersThread) {
  const auto device = this->device();
  const auto allocations = buttons().allocations();
  for (const std::size_t leaves : {1, 8}) {
    const GpuTensors tensors(std::vector<std::size_t>(40 * leaves, leaf));
    std::vector<std::byte> on_host(leaves * 1000);
    const Plan synchronous({{static_cast<std::byte*>(tensors.plan().targets()[0].data), leaf, CKPT_DEVICE},
                            {on_host.data(), on_host.size()}});
    const Plan plan = tensors.plan();
    const Slot slot(plan), private_slot(synchronous);
    attach(*device, {slot.range(), private_slot.range()});
    const auto bytes = tensors.fill(leaves);
    const auto freed = buttons().freed_here();
    const Device::Copy copy{&plan, slot.packed()};
    device->start({&copy, 1}, {&synchronous, private_slot.packed()}, nullptr);
    ASSERT_TRUE(release(*device, {nullptr}));
    ASSERT_EQ(outcome(), 1);
    EXPECT_EQ(buttons().freed_here(), freed) << "which waits for the whole GPU";
    slot.expect_holds(bytes);
    attach(*device, {});
  }
  EXPECT_TRUE(eventually([&] { return buttons().allocations() == allocations + 2; })) << "a table and a private shard";
}

}  // namespace
}  // namespace ckpt::device
