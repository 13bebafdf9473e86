// AsyncGate pauses UCX's asynchronous thread for a moment.
//
// The process has one such thread. It accepts connections and reads their first bytes, while another thread drives the
// worker. It must be paused during two things (in UCX 1.13 and, as it seems, up to 1.19):
//
// - Closing the listener and the worker. A connection that has not sent all of its first bytes yet belongs to no
//   endpoint. It outlives the listener, but uses the listener's memory when the rest arrives. It ends only with the
//   worker, and the worker must be closed after the listener.
// - Rejecting a connection, by us or inside an accept that fails. UCX keeps a socket event that it could not handle at
//   once under the socket's number. Later it handles the event for whichever connection has that number then.
//
// The gate holds the thread inside a handler of ours. There the thread has none of UCX's locks and runs no other
// handler. There is one holder at a time; others wait. Do not use the gate on the asynchronous thread itself.
#pragma once

#include <condition_variable>
#include <mutex>

#include "base/unique_fd.hpp"

namespace ckpt::net {

class AsyncGate {
 public:
  // Throws Failure (CKPT_ERR_SYSTEM).
  AsyncGate();
  ~AsyncGate();
  AsyncGate(const AsyncGate&) = delete;
  AsyncGate& operator=(const AsyncGate&) = delete;

  // The thread is paused while this object lives.
  class Closed {
   public:
    explicit Closed(AsyncGate& gate) : gate_(gate) { gate_.close(); }
    ~Closed() { gate_.open(); }
    Closed(const Closed&) = delete;
    Closed& operator=(const Closed&) = delete;

   private:
    AsyncGate& gate_;
  };

 private:
  enum class State { open, closing, closed };
  void close();
  void open();
  void pass();

  UniqueFd doorbell_;
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::open;
};

}  // namespace ckpt::net
