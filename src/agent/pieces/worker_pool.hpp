// WorkerPool runs the agent's slow work, such as digests and touching fresh memory, on a few threads. Jobs start in the
// order in which they were submitted.
//
// Thread-safe. The queue has no bound of its own: the callers of submit() must limit the number of their jobs. A job
// must not throw and must end by itself. The destructor waits until all jobs have run.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ckpt::agent {

class WorkerPool {
 public:
  explicit WorkerPool(unsigned threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  void submit(std::function<void()> job);
  // Returns when no job waits or runs. That includes jobs that jobs have submitted.
  void drain();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable ready_;
  std::condition_variable idle_;
  std::deque<std::function<void()>> jobs_;
  std::size_t running_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ckpt::agent
