// What the replicator and its thread share: the thread carries exchanges in run(), everybody else asks for them. It
// outlives the replicator where the thread cannot end.
//
// The end goes in this order: NCCL's abort begins; what was given to begin() becomes still, which a thread that does
// nothing but watch tells; all is freed. Each of them may hang, and none is waited for beyond one deadline.
//
// The thread that issues may hang in the driver before it comes to that: where training waits there for a chunk of
// ours, with a lock of the driver's, no call comes back before the chunk has ended. So whenever somebody waits for what
// that thread does next it has a deadline: until the members have met, while a step is allowed that has not arrived,
// until NCCL's abort begins, until the end is told. A watchdog keeps it, which calls nothing of the driver's or NCCL's:
// it has one more thread begin the abort, and tells the end itself.
#pragma once

#include <utility>

#include "device/cuda_replicator.hpp"

namespace ckpt::device {

class CudaReplicator::ProgressThread : public std::enable_shared_from_this<ProgressThread> {
 public:
  ProgressThread(const Group& group, const Settings& settings, Failed failed);

  // On the thread that issues. May never return.
  void run(const std::shared_ptr<const Context>& context);
  // On the watchdog's: until that thread leaves, or should have got further.
  void watch_thread();
  // There is no thread that issues, or no more.
  void leave();

  // As the replicator's.
  bool wait_to_meet(Deadline deadline);
  bool begin(Exchange exchange);
  void allow(std::uint64_t number, std::uint64_t steps);
  void finish(std::uint64_t number);
  void give_up(const std::string& why);
  bool works() const;

  // Asks the thread to end, and says until when to wait for that.
  Deadline stop();
  // Tells how it ended, as far as that is known now; nothing that was given is called any more. Once.
  void report_failure();

 private:
  using Lock = std::unique_lock<std::mutex>;

  void carry_all();
  void meet();
  void carry(Exchange exchange);
  bool come_round();
  void report_progress();
  void expect_progress(bool owes);
  void hurry();
  void end_in_its_place(Lock lock);
  void end(const std::shared_ptr<const Context>& context, std::string why);
  std::unique_ptr<LeavableThread> watch_copies(const std::shared_ptr<const Context>& context, Deadline deadline);
  void end_nccl(Deadline deadline);
  void let_go();
  bool stopped() const;
  bool goes_on() const;
  Deadline end_deadline();

  const Group group_;
  const Settings settings_;
  const Failed failed_;
  std::unique_ptr<CudaExchange> exchange_;                     // the thread's
  Progress progress_;                                          // likewise
  Done done_;                                                  // likewise
  std::pair<std::uint64_t, std::uint64_t> reported_progress_;  // likewise

  std::mutex calls_mutex_;  // held while something that was given is called; taken before mutex_
  bool failure_reported_ = false;

  mutable std::mutex mutex_;  // for all below
  std::condition_variable changed_;
  std::optional<Exchange> next_;
  bool busy_ = false;   // from begin() until `done`
  bool holds_ = false;  // what was given to begin() may be read and written
  bool has_met_ = false, works_ = true, stop_ = false;
  std::uint64_t number_ = 0, allowed_ = 0;  // of the exchange that was begun last
  bool finishes_ = false;                   // likewise
  std::string why_;                         // it failed, or is to
  std::optional<Deadline> end_deadline_;
  // When the thread that issues must have got further; none where nobody waits for that. Where one is set, or an
  // earlier one, changed_ is told.
  std::optional<Deadline> due_;
  bool has_left_ = false;           // that thread
  std::shared_ptr<NcclComm> comm_;  // until it ends it; the watchdog may
};

}  // namespace ckpt::device
