// One connection to a peer and the operations that UCX has in hand for it.
//
// An operation is over when UCX has called back, or some time after the endpoint was closed: from then on UCX has no
// way left to reach its memory. Either way its `done` runs exactly once. A link that makes no progress for too long
// while operations are in flight has failed: UCX itself does not notice a peer that is stopped but alive.
//
// An outgoing link is there before its endpoint: that is opened when the peer's door has told where to.
//
// Not thread-safe: everything on the transport's thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_set>
#include <vector>

#include "net/session.hpp"
#include "net/transport.hpp"
#include "net/ucx.hpp"

namespace ckpt::net {

// Milliseconds on the monotonic clock.
std::int64_t now_ms();

class Link : public std::enable_shared_from_this<Link> {
 public:
  // `ok`: sent as far as UCX is concerned, or received. May run before the call that started the operation returns.
  using Done = std::function<void(bool ok)>;

  // `failures` counts the links that failed and are not closed yet.
  Link(Ucx& ucx, bool outgoing, std::size_t& failures) : ucx_(ucx), outgoing_(outgoing), failures_(failures) {}
  ~Link();

  bool open(const std::string& address);
  bool open(ucp_conn_request_h request);
  ucp_ep_h endpoint() const { return endpoint_; }
  bool outgoing() const { return outgoing_; }

  // Who is at the other end; meaningful once proven.
  NodeId peer() const { return peer_; }
  std::uint64_t peer_instance() const { return peer_instance_; }
  bool proven() const { return proven_; }
  void expect(NodeId peer, std::uint64_t instance);
  // Of an outgoing link: what the peer's answer will prove.
  void expect(const Session& session) { session_ = session; }
  const Session& session() const { return session_; }
  void prove(const Session& session);
  // Runs `work` once the peer is proven: now, or later, or never when the link fails before.
  void when_proven(std::function<void()> work);

  // `payload` stays valid until `done`; `keep` is held until then. The seal of the session goes before the header.
  template <class Header>
  void send(wire::Kind kind, const Header& header, std::span<const std::byte> payload = {},
            const std::shared_ptr<const void>& keep = nullptr, const Done& done = nullptr) {
    send_bytes(kind, wire::bytes_of(header), payload, keep, done);
  }
  void send_bytes(wire::Kind kind, std::span<const std::byte> header, std::span<const std::byte> payload,
                  std::shared_ptr<const void> keep, Done done);
  // Takes the seal off; false where it is not this session's.
  bool unseal(Arrival& arrival) const;
  // Receives the payload of `arrival` (inside the call that delivers it) into `memory` of the same size.
  void receive(Arrival& arrival, std::span<std::byte> memory, Done done);

  // Hands the payload of `arrival` to `then`, now or when it was received; drops it when too much is under way.
  void read(Arrival& arrival, std::function<void(std::span<const std::byte>)> then);

  // Why the link is no longer used; set once, by whoever notices first. The owner then closes it.
  void fail(FetchEnd reason);
  // Fails a link of which nobody need hear: ours to drop, or a stranger's.
  void retire();
  bool failed() const { return failed_; }
  bool retired() const { return retired_; }
  FetchEnd failure() const { return failure_; }
  // Fails a link without progress for `timeout_ms`.
  void check_progress(std::int64_t timeout_ms);
  void note_progress() { progressed_at_ms_ = now_ms(); }
  std::int64_t progressed_at_ms() const { return progressed_at_ms_; }

  // Closes the endpoint. Operations in flight then end on their own, or are given up by end_operations().
  void close();
  bool idle() const { return operations_.empty(); }
  void end_operations();

 private:
  struct Operation;
  Operation* start(Done done, std::shared_ptr<const void> keep);
  void submitted(Operation* operation, ucs_status_ptr_t result);
  static void finish(Operation* operation, ucs_status_t status);
  ucp_err_handler_t error_handler();

  Ucx& ucx_;
  const bool outgoing_;
  std::size_t& failures_;
  ucp_ep_h endpoint_ = nullptr;
  NodeId peer_ = 0;
  std::uint64_t peer_instance_ = 0;
  bool proven_ = false;
  Session session_;
  std::uint64_t seal_out_ = 0;  // 0: none yet
  std::uint64_t seal_in_ = 0;
  bool closed_ = false;
  bool failed_ = false;
  bool retired_ = false;
  FetchEnd failure_ = FetchEnd::peer_failed;
  std::vector<std::function<void()>> waiting_;
  std::size_t incoming_bytes_ = 0;
  std::int64_t progressed_at_ms_ = now_ms();
  std::unordered_set<Operation*> operations_;
};

}  // namespace ckpt::net
