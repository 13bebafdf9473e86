// Makes UCX's asynchronous thread stand still for a moment.
//
// That thread, one for the whole process, accepts connections and reads what they begin with, beside the thread that
// drives the worker. Two things must not happen meanwhile (both are so in UCX 1.13 and, as it seems, up to 1.19):
//
// - The end of listener and worker. A connection that has not yet sent all that it begins with belongs to no endpoint
//   and outlives the listener, but uses its memory when the rest arrives. It ends with the worker, which can only end
//   after the listener.
// - The rejection of a connection, by us or inside an accept that fails. An event of its socket that could not be
//   handled at once is kept under the socket's number, and is handled for whichever connection has that number by then.
//
// The thread is held inside a handler of ours, where it has none of UCX's locks and is in no other handler. One holder
// at a time; others wait. Not to be used on the asynchronous thread itself.
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

  // The thread stands still while this lives.
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
