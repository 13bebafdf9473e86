// AsyncGate pauses UCX's asynchronous thread for a moment, to avoid two bugs of UCX. (UCX 1.13 has them, and later
// releases up to 1.19 seem to have them, too.)
//
// UCX has one asynchronous thread in each process. It accepts connections and reads their first bytes, while another
// thread drives UCX's worker. The asynchronous thread must be paused during two actions:
//
// - Closing the listener and the worker. A connection that has not sent all of its first bytes outlives the listener,
//   but uses the listener's memory when more bytes arrive. Such a connection ends only with the worker, which must be
//   closed after the listener.
// - Rejecting a connection. Meanwhile UCX cannot handle an event of the connection's socket, and remembers the event by
//   the number of the socket's descriptor. A later connection may get this number, and then the event. While the
//   asynchronous thread is paused, it finds no events. An accept that fails rejects a connection, too.
//
// The gate stops the asynchronous thread inside a handler of ours, where the thread has none of UCX's locks. Only one
// thread at a time may close the gate, and never the asynchronous thread itself.
#pragma once

#include <condition_variable>
#include <mutex>

#include "base/unique_fd.hpp"

namespace ckpt::net {

class AsyncGate {
 public:
  // Registers a handler with UCX. Throws Failure (CKPT_ERR_SYSTEM) if UCX refuses it.
  AsyncGate();
  ~AsyncGate();
  AsyncGate(const AsyncGate&) = delete;
  AsyncGate& operator=(const AsyncGate&) = delete;

  // While a Closed exists, the asynchronous thread is paused. The constructor waits until the thread has paused, at
  // most 5 s, and then goes on without a pause.
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
