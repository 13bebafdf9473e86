#include "agent/arena_watch.hpp"

#include <unistd.h>

namespace ckpt::agent {
namespace {

constexpr std::int64_t arena_look_ms = 250;

}  // namespace

void ArenaWatch::tick() {
  if (!look_at_.passed()) return;
  look_at_ = Deadline::in_ms(arena_look_ms);
  pieces_.drop_truncated();
  if (arena_.is_removed() && !make_again()) return;
  const std::uint64_t nameless_bytes = segments_.nameless_bytes();
  std::string alarm;
  if (nameless_bytes != 0)
    alarm =
        "somebody removed files of the arena " + arena_.directory() + "; " +
        std::to_string((nameless_bytes >> 20) + 1) + " MiB of checkpoints are now only in the memory of process " +
        std::to_string(::getpid()) +
        " and are lost when it ends; do not stop it before the job has ended or has a checkpoint on storage, and keep "
        "the files from being removed again (loginctl enable-linger, or RemoveIPC=no in logind.conf)";
  if (alarm != alarm_ && !alarm.empty()) event_log_.note(alarm);
  alarm_ = std::move(alarm);
}

// Returns false if another agent has the arena, so this one ends.
bool ArenaWatch::make_again() {
  const std::string& directory = arena_.directory();
  event_log_.note("somebody removed the arena " + directory + "; its agent makes it again");
  try {
    arena_.make_again();
    agent_.listen_again();
  } catch (const Failure& failure) {
    if (failure.status() == CKPT_ERR_CLAIMED) {
      agent_.stop(EndReason::replaced,
                  "somebody removed the arena " + directory + ", and another agent uses it now; this agent ends");
      return false;
    }
    event_log_.note("the arena " + directory + " cannot be made again: " + failure.what());
  }
  return true;
}

}  // namespace ckpt::agent
