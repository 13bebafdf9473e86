#include "captures.hpp"

#include <algorithm>

namespace cuda_double {
namespace {

int the_graph = 0;  // graphs are never launched

}  // namespace

Captures::Capture* Captures::find(const Stream& stream) {
  for (auto& [number, capture] : captures_)
    if (capture.streams.contains(&stream)) return &capture;
  return nullptr;
}

Captures::Capture* Captures::find(std::uint64_t number) {
  const auto found = captures_.find(number);
  return found == captures_.end() ? nullptr : &found->second;
}

CUresult Captures::invalidate(Capture& capture, CUresult why) {
  if (capture.is_valid) ++invalidated_;
  capture.is_valid = false;
  return why;
}

Captures::Answer Captures::check_legacy(bool is_legacy) {
  if (!is_legacy) return std::nullopt;
  for (auto& [number, capture] : captures_)
    if (capture.origin->blocking && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED)
      return invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  return std::nullopt;
}

CUresult Captures::begin(const Stream& stream, CUstreamCaptureMode mode) {
  const std::lock_guard lock(mutex_);
  if (find(stream) != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  captures_[++last_] = {&stream, mode, std::this_thread::get_id(), true, {{&stream, false}}};
  return CUDA_SUCCESS;
}

CUresult Captures::end(const Stream& stream, CUgraph* graph) {
  const std::lock_guard lock(mutex_);
  Capture* const capture = find(stream);
  if (capture == nullptr || capture->origin != &stream) return CUDA_ERROR_ILLEGAL_STATE;
  const bool is_joined = std::none_of(capture->streams.begin(), capture->streams.end(),
                                      [&](const auto& entry) { return entry.first != &stream && entry.second; });
  const bool is_valid = capture->is_valid;
  std::erase_if(captures_, [&](const auto& entry) { return &entry.second == capture; });
  *graph = nullptr;
  if (!is_valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!is_joined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  *graph = reinterpret_cast<CUgraph>(&the_graph);
  return CUDA_SUCCESS;
}

// Asking breaks nothing.
CUresult Captures::status(const Stream& stream, bool is_legacy, CUstreamCaptureStatus* status) {
  const std::lock_guard lock(mutex_);
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  for (const auto& [number, capture] : captures_)
    if (is_legacy && capture.origin->blocking && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED)
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (const Capture* capture = find(stream))
    *status = capture->is_valid ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  return CUDA_SUCCESS;
}

Captures::Answer Captures::work(const Stream& stream, bool is_legacy) {
  const std::lock_guard lock(mutex_);
  if (const auto refused = check_legacy(is_legacy)) return refused;
  Capture* const capture = find(stream);
  if (capture == nullptr) return std::nullopt;
  if (!capture->is_valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  capture->streams[&stream] = true;
  return CUDA_SUCCESS;
}

Captures::Answer Captures::record(const Stream& stream, bool is_legacy, RecordedIn& event) {
  const std::lock_guard lock(mutex_);
  if (const auto refused = check_legacy(is_legacy)) return refused;
  event = {};
  for (const auto& [number, capture] : captures_)
    if (capture.streams.contains(&stream)) {
      event = {number, &stream};
      return capture.is_valid ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
  return std::nullopt;
}

Captures::Answer Captures::wait(const Stream& stream, bool is_legacy, const RecordedIn& event) {
  const std::lock_guard lock(mutex_);
  if (const auto refused = check_legacy(is_legacy)) return refused;
  Capture* const waiting = find(stream);
  Capture* const recorded = find(event.capture);
  if (waiting == nullptr && recorded == nullptr) return std::nullopt;
  if (waiting != nullptr && waiting != recorded) return invalidate(*waiting, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  if (!recorded->is_valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  recorded->streams[&stream] = true;
  if (&stream == recorded->origin) recorded->streams[event.stream] = false;
  return CUDA_SUCCESS;
}

Captures::Answer Captures::ask(const Stream& stream, bool is_legacy) {
  const std::lock_guard lock(mutex_);
  if (const auto refused = check_legacy(is_legacy)) return refused;
  Capture* const capture = find(stream);
  if (capture == nullptr) return std::nullopt;
  return invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

Captures::Answer Captures::ask(const RecordedIn& event) {
  const std::lock_guard lock(mutex_);
  Capture* const capture = find(event.capture);
  if (capture == nullptr) return std::nullopt;
  return invalidate(*capture, CUDA_ERROR_CAPTURED_EVENT);
}

Captures::Answer Captures::call_unsafe(bool is_relaxed) {
  const std::lock_guard lock(mutex_);
  Answer answer;
  for (auto& [number, capture] : captures_) {
    const bool is_own = capture.thread == std::this_thread::get_id();
    const bool forbids = capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
                         (capture.mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && is_own);
    if (forbids && !is_relaxed) answer = invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  return answer;
}

std::uint64_t Captures::invalidated() const {
  const std::lock_guard lock(mutex_);
  return invalidated_;
}

void Captures::forget_all() {
  const std::lock_guard lock(mutex_);
  captures_.clear();
  invalidated_ = 0;
}

}  // namespace cuda_double
