#include "device/cuda_device.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "base/text.hpp"
#include "base/thread.hpp"
#include "device/cuda_bounce.hpp"
#include "device/cuda_copy.hpp"
#include "device/cuda_timestamps.hpp"

namespace ckpt::device {
namespace {

constexpr auto poll_pause = std::chrono::microseconds(100);
constexpr auto late_pause = std::chrono::milliseconds(5);

// Keeps resources whose release would wait for a GPU that does not answer.
template <class Resource>
void keep_for_good(std::unique_ptr<Resource> resource) {
  static std::mutex mutex;
  static auto* const all = new std::vector<std::unique_ptr<Resource>>;
  const std::lock_guard lock(mutex);
  all->push_back(std::move(resource));
}

std::optional<std::size_t> first_difference(const std::uint64_t* digests, const std::uint64_t* expected,
                                            std::size_t count) {
  const auto differing = std::mismatch(digests, digests + count, expected).first;
  if (differing == digests + count) return std::nullopt;
  return static_cast<std::size_t>(differing - digests);
}

}  // namespace

// What one load() or verify() reads and writes on the host.
struct CudaDevice::Reading {
  explicit Reading(std::size_t leaf_count) : leaves(leaf_count), digests(leaf_count * sizeof(std::uint64_t)) {}
  const std::size_t leaves;
  PinnedMemory digests;
  std::optional<CudaBounce> bounce;  // where what is loaded is not pinned
};

int CudaDevice::ordinal_of(const void* data) {
  // Uses the context of the caller's thread. A context of our own would cost memory on some GPU.
  const auto pointer = reinterpret_cast<CUdeviceptr>(data);
  unsigned type = 0;
  int ordinal = 0;
  const auto ask = cuda_driver().cuPointerGetAttribute;
  const CUresult result = ask(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer);
  if (result == CUDA_ERROR_INVALID_CONTEXT)
    throw Failure(CKPT_ERR_INVALID,
                  "is in device memory, but CUDA is not initialized on this thread (it has no current context); "
                  "register it on the thread that uses it");
  if (result != CUDA_SUCCESS || type != CU_MEMORYTYPE_DEVICE ||
      ask(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer) != CUDA_SUCCESS)
    throw Failure(CKPT_ERR_INVALID, "was registered as device memory, but it is not; register it as host memory");
  return ordinal;
}

CudaDevice::CudaDevice(int ordinal, std::uint64_t staging_bytes, const CudaLimits& limits)
    : ordinal_(ordinal),
      wanted_staging_bytes_(staging_bytes),
      limits_(limits),
      context_(ordinal),
      pinning_(context_, limits.retries) {
  const ContextScope scope(context_);
  staging_pipeline_ = std::make_unique<CudaStagingPipeline>(staging_bytes, limits.chunk_max_bytes);
  captured_ = std::make_shared<CudaCaptured>(mutex_, *staging_pipeline_);
  pacing_.emplace(*staging_pipeline_);
  thread_ = start_thread("ckpt-cuda", [this] { run(); });
}

CudaDevice::~CudaDevice() {
  cancel();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  captured_->detach();
  const ContextScope scope(context_);
  lead_.reset();
  if (is_late_) look_for_late_copy();
  if (may_still_write()) keep_for_good(std::move(staging_pipeline_));
  staging_pipeline_.reset();
}

void CudaDevice::reach(ckpt_memory memory, const void* data) {
  if (memory == CKPT_HOST) return;
  const int ordinal = ordinal_of(data);
  if (ordinal != ordinal_)
    throw Failure(CKPT_ERR_INVALID, "is on GPU " + std::to_string(ordinal) + ", but the tensors before it are on GPU " +
                                        std::to_string(ordinal_) +
                                        "; an engine is for one GPU: use one process for each");
}

void CudaDevice::check_streams(const char* call, std::span<const Stream> streams) const {
  const ContextScope scope(context_);
  for (const Stream stream : streams) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = cuda_driver().cuStreamIsCapturing(static_cast<CUstream>(stream), &status);
    const bool is_captured =
        result == CUDA_SUCCESS ? status != CU_STREAM_CAPTURE_STATUS_NONE : result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (is_captured)
      throw Failure(CKPT_ERR_INVALID,
                    std::string(call) +
                        " was called while a CUDA graph is recorded on one of its streams. No copy runs during a "
                        "recording. Call the function outside of the recording, before the graph is launched");
  }
}

bool CudaDevice::broken() const {
  const Lock lock(mutex_);
  return dead_ || is_late_ || wants_ranges();
}

std::string CudaDevice::failure() const {
  const Lock lock(mutex_);
  const std::string refusal = pinning_.failure();
  return refusal.empty() || may_still_write() ? failure_ : refusal;
}

std::string CudaDevice::shortage() const {
  if (!staging_pipeline_->is_short()) return {};
  return "GPU " + std::to_string(ordinal_) +
         " has too little free memory for gpu_staging_bytes=" + size_text(wanted_staging_bytes_) +
         ": the engine uses " + size_text(staging_bytes()) +
         ", so updates wait longer for copies; create the engine before other code fills the memory, or ask for less";
}

void CudaDevice::fail(const std::string& sentence) {
  failure_ = "the GPU could not copy: " + sentence;
  phase_ = Phase::failed;
}

template <class Enqueue>
void CudaDevice::begin(Enqueue enqueue) {
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return phase_ != Phase::ending; });  // `done` may have told the caller to go on
  const ContextScope scope(context_);
  phase_ = Phase::copying;
  try {
    if (is_late_) throw Failure(CKPT_ERR_SYSTEM, "it has not ended an earlier copy");
    enqueue(*staging_pipeline_);
  } catch (const Failure& failure) {
    fail(failure.what());
  }
  pinning_.free(staging_pipeline_->take_retired());
  changed_.notify_all();
}

void CudaDevice::start(std::span<const Copy> overlapped, const Copy& synchronous, Stream stream) {
  begin([&](CudaStagingPipeline& pipeline) { pipeline.begin(overlapped, synchronous, static_cast<CUstream>(stream)); });
}

void CudaDevice::start_late(std::span<const Copy> overlapped) {
  begin([&](CudaStagingPipeline& pipeline) { pipeline.begin_late(overlapped); });
}

// start_late() tries again what fails here.
void CudaDevice::reserve_late(std::span<const Copy> pieces) {
  const Lock lock(mutex_);
  if (may_still_write()) return;
  const ContextScope scope(context_);
  try {
    staging_pipeline_->reserve_late(pieces);
  } catch (const Failure&) {
    return;
  }
  pinning_.free(staging_pipeline_->take_retired());
}

std::uint64_t CudaDevice::capture_number() const {
  const Lock lock(mutex_);
  return phase_ == Phase::copying ? staging_pipeline_->captures() : 0;
}

void CudaDevice::pace(CopyPace* pace) {
  const Lock lock(mutex_);
  pacing_->use(pace);
}

bool CudaDevice::wait_for_synchronous(std::int64_t timeout_ms) {
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  Lock lock(mutex_);
  const ContextScope scope(context_);
  try {
    while (phase_ == Phase::copying && !staging_pipeline_->synchronous_arrived()) {
      if (deadline.passed()) return false;
      changed_.wait_for(lock, poll_pause);
    }
  } catch (const Failure& failure) {
    fail(failure.what());
  }
  return phase_ == Phase::copying;
}

void CudaDevice::note_lead(Stream stream) {
  const ContextScope scope(context_);
  try {
    if (!lead_) lead_.emplace();
    lead_->record(static_cast<CUstream>(stream));
  } catch (const Failure&) {
    lead_.reset();
  }
}

bool CudaDevice::is_ahead() const {
  const ContextScope scope(context_);
  try {
    return lead_ && !lead_->reached();
  } catch (const Failure&) {
    return false;
  }
}

bool CudaDevice::release(std::span<const Stream> streams, std::int64_t timeout_ms, Done done) {
  Lock lock(mutex_);
  if (phase_ != Phase::copying) return false;
  const ContextScope scope(context_);
  try {
    if (!streams.empty()) follow_pace(lock, static_cast<CUstream>(streams.front()), Deadline::in_ms(timeout_ms / 2));
    pacing_->hurry();
    if (!feed_until_packed(lock, Deadline::in_ms(timeout_ms))) return false;
    staging_pipeline_->release(streams);
  } catch (const Failure& failure) {
    fail(failure.what());
    return false;
  }
  phase_ = Phase::released;
  done_ = std::move(done);
  timeout_ms_ = timeout_ms;
  deadline_.reset();
  has_ended_ = false;
  changed_.notify_all();
  return true;
}

void CudaDevice::cancel() {
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return phase_ != Phase::ending; });
  if (phase_ == Phase::idle) return;
  const ContextScope scope(context_);
  drain();
  done_ = nullptr;
  phase_ = Phase::idle;
  changed_.notify_all();
}

// Enqueued work still writes to the slots. It must end before anybody else may use them. Until then nothing more is
// captured, so the slots keep their owner.
void CudaDevice::drain() {
  if (is_late_) return;
  try {
    staging_pipeline_->abandon();
    staging_pipeline_->release({});
    staging_pipeline_->end();
    if (!wait_for_arrival(Deadline::in_ms(limits_.drain_timeout_ms))) be_late(limits_.drain_timeout_ms);
  } catch (const Failure& failure) {
    die(failure);
  }
}

void CudaDevice::be_late(std::int64_t timeout_ms) {
  is_late_ = true;
  pinning_.keep_all(true);
  failure_ = "the GPU did not end a copy within " + std::to_string(timeout_ms) +
             " ms; check whether the GPU hangs (nvidia-smi). Snapshots go on once the copy has ended";
}

void CudaDevice::die(const Failure& failure) {
  is_late_ = false;
  dead_ = true;
  pinning_.keep_all(true);
  failure_ = std::string("the GPU does not answer any more: ") + failure.what();
}

bool CudaDevice::wait_for_arrival(Deadline deadline) const {
  while (!staging_pipeline_->arrived()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(poll_pause);
  }
  return true;
}

// Enqueues some of what can be enqueued without blocking. `only_into_free`: only into sub-buffers that are free.
void CudaDevice::feed(bool only_into_free) {
  constexpr int chunks_max = 64;  // so that nobody waits long for the lock
  CudaStagingPipeline& pipeline = *staging_pipeline_;
  for (int i = 0; i < chunks_max; ++i)
    if (pipeline.may_copy())
      pipeline.copy_next();
    else if (pipeline.may_pack() && (!only_into_free || (pipeline.room() && pacing_->may_pack())))
      pipeline.pack_next();
    else
      return;
}

// A pace puts off chunks that the update must wait for. The host waits for it, but only while the GPU has work of
// training: until the GPU comes to the update at the latest. So training loses some of its lead, and the GPU no time.
// The thread of the device enqueues what the pace lets it.
void CudaDevice::follow_pace(Lock& lock, CUstream update, Deadline deadline) {
  staging_pipeline_->note_update(update);
  while (phase_ == Phase::copying && pacing_->holds_back() && !deadline.passed()) changed_.wait_for(lock, poll_pause);
}

// Somebody waits for the streams now, so to wait for free sub-buffers gains nothing: the update comes after all of it.
// If more is left than the driver's queue should take, waits for the GPU without the lock. Returns false after a
// failure.
bool CudaDevice::feed_until_packed(Lock& lock, Deadline deadline) {
  for (feed(false); !staging_pipeline_->is_packed(); feed(false)) {
    if (deadline.passed())
      fail(
          "earlier work on it did not end in time to enqueue the rest of the copy; check whether the GPU hangs "
          "(nvidia-smi)");
    else
      changed_.wait_for(lock, poll_pause);
    if (phase_ != Phase::copying) return false;
  }
  return true;
}

void CudaDevice::finish(Lock& lock, bool whole) {
  const Done done = std::exchange(done_, nullptr);
  phase_ = Phase::ending;
  lock.unlock();
  done(whole);
  lock.lock();
  phase_ = Phase::idle;
  changed_.notify_all();
}

// The time begins when the GPU gets to the copy. Training may have enqueued much before it.
bool CudaDevice::takes_too_long() {
  if (!deadline_ && staging_pipeline_->entered()) deadline_ = Deadline::in_ms(timeout_ms_);
  return deadline_ && deadline_->passed();
}

void CudaDevice::look_for_late_copy() {
  try {
    if (!staging_pipeline_->arrived()) return;
    is_late_ = false;
    failure_.clear();
    pinning_.keep_all(false);
  } catch (const Failure& failure) {
    die(failure);
  }
}

void CudaDevice::run() {
  const ContextScope scope(context_);
  Lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] {
      return stop_ || is_late_ || phase_ == Phase::released ||
             (phase_ == Phase::copying && (!staging_pipeline_->is_copied() || pacing_->expects()));
    });
    if (stop_) return;
    if (is_late_) {
      look_for_late_copy();
      if (is_late_) changed_.wait_for(lock, late_pause);
      continue;
    }
    step(lock);
  }
}

void CudaDevice::step(Lock& lock) {
  const bool released = phase_ == Phase::released;
  try {
    pacing_->look();
    feed(true);
    pacing_->look();
    if (released && !has_ended_ && staging_pipeline_->is_copied()) {
      staging_pipeline_->end();
      has_ended_ = true;
    }
    if (released && has_ended_ && staging_pipeline_->arrived()) {
      pacing_->look();
      return finish(lock, true);
    }
    if (released && takes_too_long()) {
      staging_pipeline_->abandon();
      staging_pipeline_->end();
      be_late(timeout_ms_);
      return finish(lock, false);
    }
  } catch (const Failure& failure) {
    fail(failure.what());
  }
  if (released && phase_ == Phase::failed) {
    drain();
    return finish(lock, false);
  }
  changed_.wait_for(lock, poll_pause);
}

// Enqueues work that ends with the digests of all leaves on the host, waits for it, and compares. Call it with the lock
// held and the context current.
template <class Enqueue>
std::optional<std::size_t> CudaDevice::read(std::unique_ptr<Reading> reading, const std::uint64_t* expected,
                                            Deadline deadline, Enqueue enqueue) {
  auto* const digests = reading->digests.as<std::uint64_t>();
  try {
    enqueue(digests);
    if (!wait_for_arrival(deadline))
      throw Failure(CKPT_ERR_TIMEOUT, "the GPU did not load or check the state within " +
                                          std::to_string(limits_.load_timeout_ms) +
                                          " ms; check whether the GPU hangs (nvidia-smi)");
  } catch (const Failure&) {
    drain();
    if (may_still_write()) keep_for_good(std::move(reading));
    changed_.notify_all();
    throw;
  }
  pinning_.free(staging_pipeline_->take_retired());
  return first_difference(digests, expected, reading->leaves);
}

std::optional<std::size_t> CudaDevice::load(const Plan& plan, ConstPacked from, Stream stream) {
  if (plan.leaves() == 0) return std::nullopt;
  const Lock lock(mutex_);
  if (may_still_write()) throw Failure(CKPT_ERR_SYSTEM, failure_);
  const ContextScope scope(context_);
  auto reading = std::make_unique<Reading>(plan.leaves());
  if (!pinning_.covers({const_cast<std::byte*>(from.data), plan.length_bytes()})) reading->bounce.emplace(context_);
  const Deadline deadline = Deadline::in_ms(limits_.load_timeout_ms);
  const auto copy_in = [&, bounce = reading->bounce ? &*reading->bounce : nullptr](
                           CUdeviceptr to, std::uint64_t first_byte, std::size_t size_bytes, CUstream on) {
    if (bounce != nullptr)
      bounce->copy_to_device(to, from.data + first_byte, size_bytes, on, deadline);
    else
      copy_to_device(to, from.data + first_byte, size_bytes, on);
  };
  const auto bad_leaf = read(std::move(reading), from.digests, deadline, [&](std::uint64_t* digests) {
    staging_pipeline_->load(plan, copy_in, digests, static_cast<CUstream>(stream));
  });
  staging_pipeline_->land();
  return bad_leaf;
}

std::optional<std::size_t> CudaDevice::verify(const Plan& plan, const std::uint64_t* expected, Stream stream) {
  if (plan.leaves() == 0) return std::nullopt;
  const Lock lock(mutex_);
  if (may_still_write()) throw Failure(CKPT_ERR_SYSTEM, failure_);
  const ContextScope scope(context_);
  return read(std::make_unique<Reading>(plan.leaves()), expected, Deadline::in_ms(limits_.load_timeout_ms),
              [&](std::uint64_t* digests) { staging_pipeline_->digest(plan, digests, static_cast<CUstream>(stream)); });
}

std::shared_ptr<std::byte> CudaDevice::allocate(std::size_t size_bytes) {
  struct Allocated {
    explicit Allocated(int ordinal, std::size_t size) : context(ordinal) {
      const ContextScope scope(context);
      memory = DeviceMemory(size);
    }
    ~Allocated() {
      const ContextScope scope(context);
      memory = DeviceMemory();
    }
    Context context;
    DeviceMemory memory;
  };
  const auto allocated = std::make_shared<Allocated>(ordinal_, size_bytes);
  return {allocated, reinterpret_cast<std::byte*>(allocated->memory.pointer())};
}

void CudaDevice::copy_within(std::byte* to, const std::byte* from, std::size_t size_bytes, Stream stream) {
  const ContextScope scope(context_);
  device::copy_within(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), size_bytes,
                      static_cast<CUstream>(stream));
}

std::unique_ptr<StreamTimestamps> CudaDevice::timestamps(Range words, std::shared_ptr<void> owner,
                                                         StreamTimestamps::Reached reached) {
  try {
    return std::make_unique<CudaTimestamps>(ordinal_, words, std::move(owner), std::move(reached));
  } catch (const Failure&) {
    return nullptr;
  }
}

}  // namespace ckpt::device
