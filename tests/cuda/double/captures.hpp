// Graph captures in the test double of libcuda.so.1, with the rules that break a capture:
//
// - Work on a stream that is being captured goes into the graph and does not run.
// - A stream that waits for an event of a capture joins the capture. It must be waited for before the capture ends.
// - A captured stream must not wait for an event that is not of the capture, and nobody may ask whether a stream or an
//   event of the capture has got anywhere.
// - While a blocking stream is being captured, the legacy default stream must not be used.
// - In global mode, threads must not call what may wait or allocate, unless they are in relaxed mode.
//
// A call that breaks a rule fails and makes the capture invalid. Thread-safe.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "streams.hpp"

namespace cuda_double {

// What an event was last recorded in. `capture` 0: in no capture.
struct RecordedIn {
  std::uint64_t capture = 0;
  const Stream* stream = nullptr;
};

class Captures {
 public:
  CUresult begin(const Stream& stream, CUstreamCaptureMode mode);
  CUresult end(const Stream& stream, CUgraph* graph);
  CUresult status(const Stream& stream, bool is_legacy, CUstreamCaptureStatus* status);

  // Each returns nothing if the call has nothing to do with a capture, and goes on as usual.
  using Answer = std::optional<CUresult>;
  Answer work(const Stream& stream, bool is_legacy);
  Answer record(const Stream& stream, bool is_legacy, RecordedIn& event);
  Answer wait(const Stream& stream, bool is_legacy, const RecordedIn& event);
  Answer ask(const Stream& stream, bool is_legacy);
  Answer ask(const RecordedIn& event);
  // A call that may wait or allocate.
  Answer call_unsafe(bool is_relaxed);

  // How many captures were made invalid.
  std::uint64_t invalidated() const;
  void forget_all();

 private:
  struct Capture {
    const Stream* origin = nullptr;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::thread::id thread;
    bool is_valid = true;
    std::map<const Stream*, bool> streams;  // true: has work that the origin does not wait for
  };
  Capture* find(const Stream& stream);
  Capture* find(std::uint64_t number);
  CUresult invalidate(Capture& capture, CUresult why);
  Answer check_legacy(bool is_legacy);

  mutable std::mutex mutex_;
  std::map<std::uint64_t, Capture> captures_;
  std::uint64_t last_ = 0, invalidated_ = 0;
};

}  // namespace cuda_double
