// ProgressThread issues CudaReplicator's exchanges from GPU to GPU, on a thread of its own: the progress thread. Other
// threads only ask for exchanges.
//
// To end, it first begins NCCL's abort. Then it waits until nothing reads or writes the memory given to begin(). Then
// it frees everything. Each of these three steps may hang, so one deadline limits all of them. If the progress thread
// has not ended by then, the ProgressThread object is leaked on purpose when the replicator is destroyed.
//
// The progress thread may also hang in a call of the driver: training may hold the driver's lock while it waits for
// bytes that the progress thread must send. So there is a second thread, the watchdog. The watchdog calls neither the
// driver nor NCCL. It has a deadline for each of these waits:
//   - until all ranks of the group have joined;
//   - until a step that all of them agreed on has ended;
//   - until the progress thread has begun the abort;
//   - until the progress thread has told the replicator's owner of the end.
// If one of these deadlines passes, a third thread begins the abort, and the watchdog tells the owner.
#pragma once

#include <utility>

#include "gpu_replication/cuda_replicator.hpp"

namespace ckpt::device {

class CudaReplicator::ProgressThread : public std::enable_shared_from_this<ProgressThread> {
 public:
  ProgressThread(const Group& group, const Settings& settings, Failed failed);

  // On the progress thread. May never return.
  void run(const std::shared_ptr<const Context>& context);
  // Runs on the watchdog's thread. Returns when the progress thread leaves. If that thread misses its deadline first,
  // the watchdog ends the communicator in its place.
  void watch_thread();
  // Lets watch_thread() return. Call it when the progress thread has ended, or could not be started.
  void leave();

  // What the replicator's functions of the same names do.
  bool wait_to_meet(Deadline deadline);
  bool begin(Exchange exchange);
  void allow(std::uint64_t number, std::uint64_t steps);
  void finish(std::uint64_t number);
  void give_up(const std::string& why);
  bool works() const;

  // Asks the thread to end. Returns the deadline until which to wait for that.
  Deadline stop();
  // Reports how the thread ended, as far as that is known. After that no callback runs. Only the first call has an
  // effect.
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
  std::unique_ptr<CudaExchange> exchange_;  // only the progress thread uses this and the next three
  Progress progress_;
  Done done_;
  std::pair<std::uint64_t, std::uint64_t> reported_progress_;

  std::mutex calls_mutex_;  // held while a callback runs; taken before mutex_
  bool failure_reported_ = false;

  mutable std::mutex mutex_;  // for all below
  std::condition_variable changed_;
  std::optional<Exchange> next_;
  bool busy_ = false;   // from begin() until `done`
  bool holds_ = false;  // memory given to begin() may be read and written
  bool has_met_ = false, works_ = true, stop_ = false;
  std::uint64_t number_ = 0, allowed_ = 0;  // of the exchange that was begun last
  bool finishes_ = false;                   // of the exchange that was begun last
  std::string why_;                         // why it failed, or shall fail
  std::optional<Deadline> end_deadline_;
  // By when the progress thread must have made progress; none if it owes none. Notify changed_ after you set it or move
  // it forward.
  std::optional<Deadline> due_;
  bool has_left_ = false;           // the progress thread
  std::shared_ptr<NcclComm> comm_;  // until that thread, or the watchdog, ends it
};

}  // namespace ckpt::device
