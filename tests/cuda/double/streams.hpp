// The streams and events of the test double of libcuda.so.1. Each stream is a bounded queue, and a thread that does its
// work in order. Between streams, only events and the legacy default stream make an order:
//
// - Work on the legacy default stream begins after all work that was enqueued on blocking streams before.
// - Work on a blocking stream begins after all work that was enqueued on the legacy default stream before.
// - Non-blocking streams do not wait for the default stream, nor it for them.
//
// One lock for all. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "control.h"

namespace cuda_double {

inline constexpr int other_work = CKPT_DOUBLE_OTHER;

struct Operation {
  int kind = other_work;
  std::function<void()> run;
  std::function<bool()> may_begin;  // null: at once. Called with the lock held
};

// One recording of an event. A stream waits for the recording that was the newest when the wait was enqueued.
struct Recording {
  bool reached = false;
  std::chrono::steady_clock::time_point reached_at;
};
struct Event {
  std::shared_ptr<Recording> newest;  // null: never recorded, which counts as reached
};

class Streams;

class Stream {
 public:
  Stream(Streams& all, bool blocking);
  ~Stream();
  const bool blocking;

 private:
  friend class Streams;
  struct Position {
    const Stream* stream;
    std::uint64_t number;
  };
  struct Entry {
    Operation operation;
    std::vector<Position> after;
  };
  void work();
  bool head_may_begin() const;

  Streams& all_;
  std::deque<Entry> queue_;
  std::uint64_t enqueued_ = 0, done_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

class Streams {
 public:
  Streams();
  ~Streams();

  Stream* create(bool blocking);
  // Returns once its work is done, which real drivers leave to later: nobody can tell.
  void destroy(Stream* stream);
  // Of a handle, with the two default streams'; null for one that does not exist.
  Stream* find(const void* handle);

  // Waits while the queue is full.
  void enqueue(Stream& stream, Operation operation);
  void record(Stream& stream, Event& event);
  void wait(Stream& stream, const Event& event);
  bool reached(const Event& event);
  // Null where it was not recorded, or not reached yet.
  std::shared_ptr<const Recording> newest_reached(const Event& event);
  bool idle(const Stream& stream);
  void synchronize(const Stream& stream);
  void synchronize(const Event& event);
  void synchronize_all();

  void hold(int kind, bool held);
  void let(int kind, std::uint64_t count);
  std::uint64_t done(int kind);
  void queue_depth(std::uint64_t operations);
  std::uint64_t queue_full();
  // 0: the context lives.
  int death();
  void kill(int result);
  void kill_at(int kind, std::uint64_t countdown, int result);
  void reset();

 private:
  friend class Stream;
  struct Kind {
    bool held = false;
    std::uint64_t let = 0, done = 0, kill_in = 0;
    int kill_result = 0;
  };
  Stream* add(bool blocking);
  bool all_idle() const;
  // With the lock held: whether the operation may begin now; counts it where it may.
  bool admit(const Operation& operation);
  void finish(int kind);

  std::mutex mutex_;  // for everything here and in the streams
  std::condition_variable changed_;
  std::map<const void*, std::unique_ptr<Stream>> streams_;
  std::map<std::thread::id, Stream*> of_threads_;
  Stream* legacy_ = nullptr;
  Kind kinds_[CKPT_DOUBLE_WORK_KINDS];
  std::uint64_t queue_depth_ = 1024, queue_full_ = 0;
  int death_ = 0;
};

}  // namespace cuda_double
