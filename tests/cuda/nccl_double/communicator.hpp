// One rank of a communicator in the test double of NCCL. Like a non-blocking communicator of NCCL, it has a thread. On
// it, the ranks meet and groups are put onto their stream. A group then runs on the stream's thread, until it is done
// or aborted or the GPU's context has died. An error does not end it, as with NCCL.
#pragma once

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gpu_replication/nccl_abi.hpp"
#include "link.hpp"

namespace nccl_double {

namespace nccl = ckpt::device::nccl;

struct Operation {
  bool is_send = false;
  int peer = 0;
  std::byte* data = nullptr;
  std::size_t size_bytes = 0;
};
using Operations = std::vector<Operation>;

class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // Ranks that give the same name meet.
  Communicator(std::string name, int ranks, int rank);
  ~Communicator();
  void begin();

  int ranks() const { return ranks_; }
  int rank() const { return rank_; }
  nccl::Result state() const;
  // A call that is refused spoils it for good, though what is on a stream goes on.
  void refuse(nccl::Result result);
  // One group at a time: after it the state is in_progress until it is on the stream. Of a pair that has exchanged
  // nothing yet the first group stays in progress until the other issues its own: only then are they connected.
  void launch(Operations operations, CUstream stream);
  // Returns when nothing of it runs any more. Needs the memory of the thread that issued last.
  void abort();
  // For the others this rank is gone. Not before they have met, nor beside abort().
  void die();

 private:
  void work();
  void enqueue(std::function<void()> job);
  void meet();
  int connect_to(int peer) const;
  void accept_others(int listener);
  void connect(const Operations& operations);
  bool connected(const std::set<Link*>& links);
  void run(const Operations& operations);
  void post(const Operations& operations);
  bool advance();
  std::vector<pollfd> wires();
  bool pause() const;
  void wait_a_little() const;
  bool stopped() const;
  bool failed() const;
  void fail(nccl::Result result);

  void issued_here();

  const std::string name_;
  const int ranks_, rank_;
  std::atomic<bool> aborted_{false}, pending_{true};
  std::atomic<nccl::Result> error_{nccl::success}, refusal_{nccl::success};

  std::mutex running_;  // held by what runs on a stream
  std::map<int, std::unique_ptr<Link>> links_;
  std::mutex wires_;  // held by who uses a link
  Operations own_sends_, own_receives_;

  std::mutex mutex_;  // for all below
  std::shared_ptr<const std::atomic<bool>> issuer_is_alive_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::thread thread_;
};

// All that were not aborted.
std::vector<std::shared_ptr<Communicator>> communicators();

}  // namespace nccl_double
