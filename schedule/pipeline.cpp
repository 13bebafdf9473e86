#include "schedule/pipeline.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace ckpt::schedule {

namespace {

void check(const PipelineRequest& request) {
  if (request.buffers == 0)
    throw std::invalid_argument("buffers is 0, but chunks need at least one sub-buffer; set it to 1 or more");
  if (!(request.link.bytes_per_s > 0))
    throw std::invalid_argument("link.bytes_per_s is " + std::to_string(request.link.bytes_per_s) + ": set it above 0");
  if (!(request.copy_bytes_per_s > 0))
    throw std::invalid_argument("copy_bytes_per_s is " + std::to_string(request.copy_bytes_per_s) + ": set it above 0");
  if (!(request.link.startup_s >= 0))
    throw std::invalid_argument("link.startup_s is " + std::to_string(request.link.startup_s) +
                                ": set it to 0 or more");
  double end_s = 0;
  for (const Span& span : request.idle) {
    if (!(span.start_s >= end_s))
      throw std::invalid_argument(
          "an idle span begins at " + std::to_string(span.start_s) +
          " s, before the end of the span before it: give spans in order of time, without overlap");
    if (!(span.length_s >= 0) || !std::isfinite(span.length_s))
      throw std::invalid_argument("an idle span is " + std::to_string(span.length_s) +
                                  " s long: give a finite number, 0 or more");
    end_s = span.start_s + span.length_s;
  }
  if (!(request.iteration_s >= end_s))
    throw std::invalid_argument("iteration_s is " + std::to_string(request.iteration_s) +
                                ", but the last idle span ends at " + std::to_string(end_s) +
                                " s: give a longer iteration");
}

// The p sub-buffers, which are used in turn, and the one copy engine that empties them.
class SubBuffers {
 public:
  SubBuffers(std::uint32_t count, double bytes_per_s) : free_at_s_(count, 0.0), bytes_per_s_(bytes_per_s) {}

  double free_at_s() const { return free_at_s_[next_]; }
  void received(double at_s, std::uint64_t size_bytes) {
    engine_free_at_s_ = std::max(at_s, engine_free_at_s_) + static_cast<double>(size_bytes) / bytes_per_s_;
    free_at_s_[next_] = engine_free_at_s_;
    next_ = (next_ + 1) % free_at_s_.size();
  }

 private:
  std::vector<double> free_at_s_;
  const double bytes_per_s_;
  double engine_free_at_s_ = 0;
  std::size_t next_ = 0;
};

}  // namespace

PipelineRun run(const PipelineRequest& request) {
  check(request);
  PipelineRun result;
  SubBuffers buffers(request.buffers, request.copy_bytes_per_s);
  std::size_t next = 0;
  double now_s = 0;
  // Sends a chunk if it can arrive by this time. Returns false if it cannot.
  const auto send = [&](double deadline_s) {
    const double time_s = request.link.time_s(request.chunks[next]);
    const double begin_s = std::max(now_s, buffers.free_at_s());
    if (begin_s + time_s > deadline_s) return false;
    result.waited_s += begin_s - now_s;
    result.network_s += time_s;
    now_s = begin_s + time_s;
    buffers.received(now_s, request.chunks[next++]);
    return true;
  };
  for (const Span& span : request.idle) {
    now_s = span.start_s;
    while (next < request.chunks.size() && send(span.start_s + span.length_s)) {
    }
  }
  result.late = static_cast<std::uint32_t>(request.chunks.size() - next);
  now_s = request.iteration_s;
  while (next < request.chunks.size()) send(INFINITY);
  result.iteration_s = now_s;
  return result;
}

std::vector<std::uint64_t> equal_chunks(std::uint64_t checkpoint_bytes, std::uint32_t copies_sent,
                                        std::uint64_t chunk_bytes) {
  std::vector<std::uint64_t> chunks;
  for (std::uint32_t copy = 0; copy < copies_sent; ++copy) {
    for (std::uint64_t left = checkpoint_bytes; left > 0; left -= chunks.back())
      chunks.push_back(std::min(left, chunk_bytes));
  }
  return chunks;
}

}  // namespace ckpt::schedule
