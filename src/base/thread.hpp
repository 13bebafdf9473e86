// Starts background threads that do not disturb the process that the library runs in.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace ckpt {

// Starts a thread that calls `body`, which must not throw. `name` has at most 15 characters. The thread blocks all
// signals, so that signal handlers run on the process's other threads. Throws std::system_error if the thread cannot
// start.
template <class Body>
std::thread start_thread(const char* name, Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  try {
    thread = std::thread(std::move(body));
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace ckpt
