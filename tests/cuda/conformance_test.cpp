// What ckptengine takes for granted about the CUDA driver. Against the test double these tests show that it is a driver
// in all that matters; against a real one, that what is taken for granted is so:
//   LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu build/release/tests/cuda_conformance_test
#include <sys/mman.h>

#include <atomic>
#include <functional>

#include "gpu.hpp"

namespace ckpt::testing_support {
namespace {

constexpr std::size_t mebibyte = 1 << 20;

// Host memory of whole pages, registered or not.
class Pages {
 public:
  explicit Pages(std::size_t size_bytes) : size_bytes_(size_bytes) {
    data_ = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  ~Pages() { ::munmap(data_, size_bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  bool holds(const std::vector<std::byte>& bytes) const { return std::memcmp(data_, bytes.data(), bytes.size()) == 0; }

 private:
  void* data_;
  std::size_t size_bytes_;
};

using Conformance = GpuTest;

TEST_F(Conformance, NeedsAContext) {
  ASSERT_CUDA(cuCtxSetCurrent(nullptr));
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAlloc(&pointer, 1), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_CUDA(cuCtxPushCurrent(context_));
  EXPECT_CUDA(cuMemAlloc(&pointer, 1));
  EXPECT_CUDA(cuMemFree(pointer));
  CUcontext popped = nullptr;
  ASSERT_CUDA(cuCtxPopCurrent(&popped));
  EXPECT_EQ(popped, context_);
}

TEST_F(Conformance, UnloadedModuleHasNoFunctions) {
  CUfunction function = nullptr;
  EXPECT_EQ(cuModuleGetFunction(&function, nullptr, "ckpt_pack"), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(Conformance, CopiesBytesToTheGpuAndBack) {
  const auto bytes = bytes_of(3 * mebibyte + 7, 1);
  const GpuBytes memory(bytes);
  EXPECT_EQ(memory.read(), bytes);
}

TEST_F(Conformance, CopiesAreAsynchronous) {
  if (!has_buttons()) GTEST_SKIP();
  const auto bytes = bytes_of(mebibyte, 2);
  const GpuBytes memory(bytes);
  const Pages pages(mebibyte);
  ASSERT_CUDA(cuMemHostRegister(pages.data(), mebibyte, 0));
  const GpuStream stream;
  const GpuEvent copied;
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  ASSERT_CUDA(cuMemcpyDtoHAsync(pages.data(), memory.pointer(), mebibyte, stream));
  ASSERT_CUDA(cuEventRecord(copied, stream));
  EXPECT_EQ(cuEventQuery(copied), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  EXPECT_FALSE(pages.holds(bytes));
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  EXPECT_TRUE(eventually([&] { return cuEventQuery(copied) == CUDA_SUCCESS; }));
  EXPECT_TRUE(pages.holds(bytes));
  EXPECT_CUDA(cuMemHostUnregister(pages.data()));
}

TEST_F(Conformance, CopyToPageableMemoryIsSynchronous) {
  if (!has_buttons()) GTEST_SKIP() << "not promised, and not relied on";
  const auto bytes = bytes_of(mebibyte, 3);
  const GpuBytes memory(bytes);
  const Pages pages(mebibyte);
  const GpuStream stream;
  ASSERT_CUDA(cuMemcpyDtoHAsync(pages.data(), memory.pointer(), mebibyte, stream));
  EXPECT_TRUE(pages.holds(bytes));
}

TEST_F(Conformance, CopyFromPageableMemoryMayReuseItOnReturn) {
  auto bytes = bytes_of(mebibyte, 4);
  const auto before = bytes;
  const GpuBytes memory(mebibyte);
  const GpuStream stream;
  ASSERT_CUDA(cuMemcpyHtoDAsync(memory.pointer(), bytes.data(), mebibyte, stream));
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  ASSERT_CUDA(cuStreamSynchronize(stream));
  EXPECT_EQ(memory.read(), before);
}

TEST_F(Conformance, CopyWithinTheDeviceFollowsEarlierWorkOfItsStream) {
  const auto bytes = bytes_of(mebibyte, 4);
  const GpuBytes from(mebibyte), to(mebibyte);
  const GpuStream stream;
  ASSERT_CUDA(cuMemcpyHtoDAsync(from.pointer(), bytes.data(), mebibyte, stream));
  ASSERT_CUDA(cuMemcpyDtoDAsync(to.pointer(), from.pointer(), mebibyte, stream));
  ASSERT_CUDA(cuMemsetD8Async(from.pointer(), 0, mebibyte, stream));
  ASSERT_CUDA(cuStreamSynchronize(stream));
  EXPECT_EQ(to.read(), bytes);
}

TEST_F(Conformance, EventThatWasNeverRecordedCountsAsReached) {
  const GpuEvent event;
  EXPECT_CUDA(cuEventQuery(event));
}

TEST_F(Conformance, StreamWaitsForTheEventsEarlierRecording) {
  if (!has_buttons()) GTEST_SKIP();
  const auto first = bytes_of(4096, 5);
  const GpuBytes source(first), middle(4096);
  const Pages pages(4096);
  ASSERT_CUDA(cuMemHostRegister(pages.data(), 4096, 0));
  const GpuStream one, two;
  const GpuEvent event;
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  ASSERT_CUDA(cuMemcpyDtoHAsync(pages.data(), source.pointer(), 4096, one));
  ASSERT_CUDA(cuEventRecord(event, one));
  ASSERT_CUDA(cuStreamWaitEvent(two, event, 0));
  ASSERT_CUDA(cuMemcpyHtoDAsync(middle.pointer(), pages.data(), 4096, two));
  const GpuStream three;
  ASSERT_CUDA(cuEventRecord(event, three));  // recorded anew: nothing to the wait that was enqueued
  ASSERT_CUDA(cuStreamSynchronize(three));
  EXPECT_EQ(cuStreamQuery(two), CUDA_ERROR_NOT_READY);
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  ASSERT_CUDA(cuStreamSynchronize(two));
  EXPECT_EQ(middle.read(), first);
  EXPECT_CUDA(cuMemHostUnregister(pages.data()));
}

TEST_F(Conformance, TimeBetweenReversedEventsIsNegative) {
  const GpuStream stream;
  const GpuEvent first(CU_EVENT_DEFAULT), second(CU_EVENT_DEFAULT);
  const auto bytes = bytes_of(8 * mebibyte, 7);
  const GpuBytes memory(bytes.size());
  ASSERT_CUDA(cuEventRecord(first, stream));
  ASSERT_CUDA(cuMemcpyHtoDAsync(memory.pointer(), bytes.data(), bytes.size(), stream));
  ASSERT_CUDA(cuEventRecord(second, stream));
  ASSERT_CUDA(cuEventSynchronize(second));
  float forth = 0, back = 0;
  EXPECT_CUDA(cuEventElapsedTime(&forth, first, second));
  EXPECT_CUDA(cuEventElapsedTime(&back, second, first));
  EXPECT_GT(forth, 0);
  EXPECT_NEAR(back, -forth, 1e-3F);
}

TEST_F(Conformance, WritesWordsInStreamOrder) {
  const Pages pages(4096);
  ASSERT_CUDA(cuMemHostRegister(pages.data(), 4096, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
  CUdeviceptr words = 0;
  ASSERT_CUDA(cuMemHostGetDevicePointer(&words, pages.data(), 0));
  const GpuStream stream;
  for (std::uint32_t value = 1; value <= 100; ++value) {
    ASSERT_CUDA(cuStreamWriteValue32(stream, words + 8, value, 0));
    ASSERT_CUDA(cuStreamWriteValue32(stream, words + 12, value, 0));
  }
  ASSERT_CUDA(cuStreamSynchronize(stream));
  const auto* const seen = reinterpret_cast<const std::uint32_t*>(pages.data());
  EXPECT_EQ(std::vector(seen, seen + 5), (std::vector<std::uint32_t>{0, 0, 100, 100, 0}));
  EXPECT_CUDA(cuMemHostUnregister(pages.data()));
}

// A thread in relaxed mode may ask for events while another one captures a graph.
TEST_F(Conformance, RelaxedThreadDoesNotDisturbACapture) {
  const GpuStream captured, other;
  const GpuEvent event;
  ASSERT_CUDA(cuEventRecord(event, other));
  ASSERT_CUDA(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_CUDA(cuStreamIsCapturing(captured, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_CUDA(cuStreamIsCapturing(other, &status));
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  std::thread thread([&] {
    cuCtxSetCurrent(context_);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    EXPECT_CUDA(cuThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
    EXPECT_CUDA(cuEventQuery(event));
  });
  thread.join();
  CUgraph graph = nullptr;
  EXPECT_CUDA(cuStreamEndCapture(captured, &graph));
  if (has_buttons()) {
    EXPECT_EQ(buttons().disturbed_captures(), 0u);
  }
}

// What a capture ends with, after a call during it.
class GraphCapture : public Conformance {
 protected:
  static CUresult end_after(CUstream captured, const std::function<void()>& call,
                            CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) {
    EXPECT_CUDA(cuStreamBeginCapture(captured, mode));
    call();
    CUgraph graph = nullptr;
    const CUresult result = cuStreamEndCapture(captured, &graph);
    EXPECT_EQ(graph != nullptr, result == CUDA_SUCCESS);
    return result;
  }
};

TEST_F(GraphCapture, RecordsWorkWithoutRunningIt) {
  const GpuBytes memory(bytes_of(4096, 1));
  const GpuStream captured;
  EXPECT_CUDA(end_after(captured, [&] { EXPECT_CUDA(cuMemsetD8Async(memory.pointer(), 7, 4096, captured)); }));
  EXPECT_EQ(memory.read(), bytes_of(4096, 1));
}

TEST_F(GraphCapture, RefusesToWaitForAnEventFromOutside) {
  const GpuStream captured, other;
  const GpuEvent event;
  EXPECT_CUDA(cuEventRecord(event, other));
  EXPECT_EQ(end_after(captured,
                      [&] { EXPECT_EQ(cuStreamWaitEvent(captured, event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION); }),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(GraphCapture, IncludesWaitingStreamsAndMustJoinThem) {
  const GpuStream captured, other;
  const GpuEvent fork, join;
  const GpuBytes memory(4096);
  const auto fork_off = [&] {
    EXPECT_CUDA(cuEventRecord(fork, captured));
    EXPECT_CUDA(cuStreamWaitEvent(other, fork, 0));
    EXPECT_CUDA(cuMemsetD8Async(memory.pointer(), 7, 4096, other));
  };
  EXPECT_EQ(end_after(captured, fork_off), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_CUDA(end_after(captured, [&] {
    fork_off();
    EXPECT_CUDA(cuEventRecord(join, other));
    EXPECT_CUDA(cuStreamWaitEvent(captured, join, 0));
  }));
}

TEST_F(GraphCapture, IsInvalidatedByQueriesOfItsProgress) {
  const GpuStream captured;
  const GpuEvent event;
  EXPECT_EQ(end_after(captured, [&] { EXPECT_NE(cuStreamSynchronize(captured), CUDA_SUCCESS); }),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(end_after(captured,
                      [&] {
                        EXPECT_CUDA(cuEventRecord(event, captured));
                        EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
                      }),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(GraphCapture, IsInvalidatedByAllocationsOfStrictThreads) {
  const GpuStream captured;
  CUdeviceptr pointer = 0;
  EXPECT_EQ(end_after(captured, [&] { EXPECT_EQ(cuMemAlloc(&pointer, 1), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); }),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  EXPECT_CUDA(cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_CUDA(end_after(captured, [&] { EXPECT_CUDA(cuMemAlloc(&pointer, 1)); }));
  EXPECT_CUDA(cuThreadExchangeStreamCaptureMode(&mode));
  EXPECT_CUDA(cuMemFree(pointer));
}

TEST_F(GraphCapture, OnABlockingStreamForbidsTheLegacyDefaultStream) {
  const GpuStream captured(CU_STREAM_DEFAULT), other;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_CUDA(end_after(captured, [&] {
    EXPECT_EQ(cuStreamIsCapturing(nullptr, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    EXPECT_CUDA(cuStreamIsCapturing(other, &status));
  }));
  const GpuEvent event;
  EXPECT_EQ(end_after(captured, [&] { EXPECT_EQ(cuEventRecord(event, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT); }),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

// Enqueues a copy that is held on one stream, then a flag on another.
class StreamOrder : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    if (!has_buttons()) GTEST_SKIP();
  }
  void expect_waits(CUstream first, CUstream second) {
    enqueue(first, second, [&](const auto& is_set) {
      EXPECT_EQ(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
      EXPECT_FALSE(is_set());
    });
  }
  void expect_passes(CUstream first, CUstream second) {
    enqueue(first, second, [&](const auto& is_set) { EXPECT_TRUE(eventually(is_set)); });
  }

 private:
  template <class Check>
  void enqueue(CUstream first, CUstream second, Check check) {
    const Pages pages(8192);
    EXPECT_CUDA(cuMemHostRegister(pages.data(), 8192, 0));
    const GpuBytes memory(4096);
    buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
    EXPECT_CUDA(cuMemcpyDtoHAsync(pages.data() + 4096, memory.pointer(), 4096, first));
    CUdeviceptr flag = 0;
    EXPECT_CUDA(cuMemHostGetDevicePointer(&flag, pages.data(), 0));
    EXPECT_CUDA(cuStreamWriteValue32(second, flag, 1, 0));
    auto* const word = reinterpret_cast<std::uint32_t*>(pages.data());
    const auto is_set = [&] { return __atomic_load_n(word, __ATOMIC_ACQUIRE) == 1; };
    check(is_set);
    buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
    EXPECT_TRUE(eventually(is_set));
    EXPECT_CUDA(cuStreamSynchronize(first));
    EXPECT_CUDA(cuStreamSynchronize(second));
    EXPECT_CUDA(cuMemHostUnregister(pages.data()));
  }
};

TEST_F(StreamOrder, TheLegacyDefaultStreamWaitsForBlockingStreams) {
  const GpuStream blocking(CU_STREAM_DEFAULT);
  expect_waits(blocking, nullptr);
}

TEST_F(StreamOrder, BlockingStreamsWaitForTheLegacyDefaultStream) {
  const GpuStream blocking(CU_STREAM_DEFAULT);
  expect_waits(CU_STREAM_LEGACY, blocking);
}

TEST_F(StreamOrder, PerThreadDefaultStreamIsBlocking) {
  expect_waits(nullptr, CU_STREAM_PER_THREAD);
  expect_waits(CU_STREAM_PER_THREAD, nullptr);
}

TEST_F(StreamOrder, NonBlockingStreamsIgnoreTheDefaultStream) {
  const GpuStream one;
  expect_passes(nullptr, one);
  expect_passes(one, nullptr);
}

TEST_F(StreamOrder, BlockingStreamsAreIndependentOfEachOther) {
  const GpuStream one(CU_STREAM_DEFAULT), two(CU_STREAM_DEFAULT);
  expect_passes(one, two);
}

TEST_F(Conformance, RegistersEachByteOnce) {
  const Pages pages(4 * 4096);
  ASSERT_CUDA(cuMemHostRegister(pages.data() + 4096, 2 * 4096, 0));
  EXPECT_EQ(cuMemHostRegister(pages.data() + 4096, 2 * 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_NE(cuMemHostRegister(pages.data(), 2 * 4096, 0), CUDA_SUCCESS);
  EXPECT_NE(cuMemHostRegister(pages.data() + 2 * 4096, 2 * 4096, 0), CUDA_SUCCESS);
  EXPECT_CUDA(cuMemHostRegister(pages.data() + 3 * 4096, 4096, 0));
  EXPECT_CUDA(cuMemHostUnregister(pages.data() + 3 * 4096));
  EXPECT_CUDA(cuMemHostUnregister(pages.data() + 4096));
  EXPECT_EQ(cuMemHostUnregister(pages.data() + 4096), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

TEST_F(Conformance, RefusesACopyThatTouchesTwoRegistrations) {
  const Pages pages(4 * 4096);
  const GpuBytes memory(2 * 4096);
  const GpuStream stream;
  ASSERT_CUDA(cuMemHostRegister(pages.data(), 2 * 4096, 0));
  ASSERT_CUDA(cuMemHostRegister(pages.data() + 2 * 4096, 2 * 4096, 0));
  EXPECT_EQ(cuMemcpyDtoHAsync(pages.data() + 4096, memory.pointer(), 2 * 4096, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoDAsync(memory.pointer(), pages.data() + 4096, 2 * 4096, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CUDA(cuMemcpyDtoHAsync(pages.data() + 2 * 4096, memory.pointer(), 2 * 4096, stream));
  EXPECT_CUDA(cuStreamSynchronize(stream));
  EXPECT_CUDA(cuMemHostUnregister(pages.data()));
  EXPECT_CUDA(cuMemHostUnregister(pages.data() + 2 * 4096));
}

TEST_F(Conformance, DistinguishesDeviceMemoryFromOtherMemory) {
  const GpuBytes memory(4096);
  unsigned type = 0;
  int ordinal = -1;
  EXPECT_CUDA(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory.pointer() + 4095));
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  EXPECT_CUDA(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory.pointer()));
  EXPECT_EQ(ordinal, 0);
  const int on_stack = 0;
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(&on_stack)),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Conformance, HostFunctionsRunInOrderAndMayNotCallTheDriver) {
  if (!has_buttons()) GTEST_SKIP() << "a real driver may hang";
  struct Seen {
    std::atomic<bool> ran{false};
    CUresult result = CUDA_SUCCESS;
  } seen;
  const GpuStream stream;
  ASSERT_CUDA(cuLaunchHostFunc(
      stream,
      [](void* data) {
        auto* const self = static_cast<Seen*>(data);
        CUdeviceptr pointer = 0;
        self->result = cuMemAlloc(&pointer, 1);
        self->ran = true;
      },
      &seen));
  ASSERT_CUDA(cuStreamSynchronize(stream));
  EXPECT_TRUE(seen.ran);
  EXPECT_EQ(seen.result, CUDA_ERROR_NOT_PERMITTED);
}

TEST_F(Conformance, UnknownHandlesAreRefused) {
  if (!has_buttons()) GTEST_SKIP() << "undefined with a real driver";
  int nothing = 0;
  const GpuEvent event;
  EXPECT_EQ(cuEventRecord(event, reinterpret_cast<CUstream>(&nothing)), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventQuery(reinterpret_cast<CUevent>(&nothing)), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(Conformance, ContextErrorPersists) {
  if (!has_buttons()) GTEST_SKIP();
  const GpuBytes memory(4096);
  const GpuStream stream;
  buttons().kill_context_at(CKPT_DOUBLE_TO_HOST, 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  std::vector<std::byte> bytes(4096);
  EXPECT_EQ(cuMemcpyDtoHAsync(bytes.data(), memory.pointer(), 4096, stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr pointer = 0;
  EXPECT_EQ(cuMemAlloc(&pointer, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(Conformance, EnqueueingWaitsForRoomInAFullQueue) {
  if (!has_buttons()) GTEST_SKIP();
  const GpuBytes memory(4096);
  const Pages pages(4096);
  ASSERT_CUDA(cuMemHostRegister(pages.data(), 4096, 0));
  const GpuStream stream;
  buttons().queue_depth(4);
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  std::atomic<int> enqueued{0};
  std::thread thread([&] {
    cuCtxSetCurrent(context_);
    for (int i = 0; i < 8; ++i) {
      EXPECT_CUDA(cuMemcpyDtoHAsync(pages.data(), memory.pointer(), 4096, stream));
      ++enqueued;
    }
  });
  EXPECT_TRUE(eventually([] { return buttons().queue_full() == 1; }));
  EXPECT_EQ(enqueued, 4);
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  thread.join();
  EXPECT_EQ(enqueued, 8);
  ASSERT_CUDA(cuStreamSynchronize(stream));
  EXPECT_CUDA(cuMemHostUnregister(pages.data()));
}

TEST_F(Conformance, HeldCallsReturnWhenReleased) {
  if (!has_buttons()) GTEST_SKIP();
  const GpuEvent event;
  std::atomic<bool> is_back{false};
  buttons().hold_calls(CKPT_DOUBLE_CALLS_HELD);
  std::thread thread([&] {
    cuCtxSetCurrent(context_);
    EXPECT_CUDA(cuEventQuery(event));
    is_back = true;
  });
  EXPECT_TRUE(eventually([] { return buttons().held_calls() == 1; }));
  EXPECT_FALSE(is_back);
  buttons().hold_calls(CKPT_DOUBLE_CALLS_RETURN);
  thread.join();
  EXPECT_TRUE(is_back);
}

TEST_F(Conformance, ReusedMemoryDoesNotHoldOldBytes) {
  if (!has_buttons()) GTEST_SKIP() << "undefined with a real driver";
  const auto bytes = bytes_of(4096, 6);
  { const GpuBytes memory(bytes); }
  const GpuBytes again(4096);
  EXPECT_EQ(again.read(), std::vector<std::byte>(4096, std::byte{0xDB}));
}

using ConformanceDeathTest = Conformance;

TEST_F(ConformanceDeathTest, TheHostCannotTouchDeviceMemory) {
  const GpuBytes memory(4096);
  EXPECT_DEATH(*static_cast<volatile char*>(memory.data()) = 1, "");
}

}  // namespace
}  // namespace ckpt::testing_support
