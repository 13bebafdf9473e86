// HaltWatch freezes this rank when its incarnation is halted. Its thread needs no lock of Python, so it works while the
// training thread holds one, hangs, or waits for other ranks.
//
// The thread reads the halt from the control page, closes the update gate, has the tensors captured, and writes to the
// page how far the rank is. The steps:
// - The agent stores in the page the iteration to freeze at (first: not decided yet), then the halt's number, and rings
//   the doorbell. Once the iteration is decided, it stores both again.
// - The thread holds the gate as soon as the rank is at rest, and writes FreezeState::held and the rank's iteration to
//   the page.
// - The leader decides the iteration that ranks freeze at: the newest that any of them has reached. A rank that is
//   behind passes the gate once more. All others freeze, and are captured. A rank that finishes its update is held at
//   once, so none overtakes that iteration.
// - Closing the engine freezes the gate, too. The thread then answers whether the state was captured.
// - Nobody waits for ever: without a decision, the rank freezes at its own iteration after hold_timeout_ms.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "arena/control.hpp"
#include "base/clock.hpp"
#include "client/update_gate.hpp"

namespace ckpt::client {

// How far a rank has come in a halt. The control page has these numbers, and core::Freeze has the same.
enum class FreezeState : std::uint8_t { none = 0, updating = 1, held = 2, capturing = 3, captured = 4, refused = 5 };

class HaltWatch {
 public:
  struct Settings {
    bool has_thread = false;                // false: the gate never closes
    std::int64_t hold_timeout_ms = 10'000;  // how long after the halt a rank waits for the decision or catches up
    std::int64_t look_every_ms = 2;         // how often the thread looks once the incarnation is halted
  };
  // The watch's thread calls both. `capture` captures the state of the gate's iteration into the granted slots. It
  // returns false if it cannot.
  struct Source {
    std::function<std::shared_ptr<arena::Control>()> control;
    std::function<bool()> capture;
  };
  HaltWatch(UpdateGate& gate, const Settings& settings, Source source);
  ~HaltWatch() { stop(); }
  HaltWatch(const HaltWatch&) = delete;
  HaltWatch& operator=(const HaltWatch&) = delete;

  // Ends the thread. If the thread is capturing, waits for the end of the capture.
  void stop();
  // Writes to the page whether closing the engine has captured the state, because the thread has ended by then.
  // Training thread. Call it after stop().
  void answer_at_end();
  // Watches for a halt of the next incarnation. Training thread. Call it after stop(), once the gate is reopened.
  void start();
  // Does once what the thread does again and again. For tests.
  void look(arena::Control& control, Clock::time_point now);

 private:
  void run();
  bool may_pass(const arena::HaltWords& halt, Clock::time_point now) const;
  FreezeState end_state() const;
  void answer(arena::Control& control, std::uint64_t halt, FreezeState state);

  UpdateGate& gate_;
  const Settings settings_;
  const Source source_;
  std::optional<Clock::time_point> give_up_at_;  // set once the thread has seen the halt
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace ckpt::client
