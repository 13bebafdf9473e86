// FakeAgent stands for the agent in tests of the engine. It has a real arena and answers requests over real frames. A
// test says when it grants slots, announces commits and fences the rank.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

#include "arena/node_arena.hpp"
#include "base/error.hpp"
#include "base/frame_socket.hpp"

namespace ckpt::client {

class FakeAgent {
 public:
  using Json = nlohmann::json;

  // Serves node "node" of job "job" in `arena_dir`, rank 0, as a restarted agent where an earlier one left something.
  explicit FakeAgent(const std::string& arena_dir)
      : arena_(arena_dir + "/job/node", "job", "node"), listener_(arena_.directory() + "/agent.sock") {
    std::vector<std::string> removed;
    for (auto& segment : arena_.attach_segments(removed)) segments_.push_back(std::move(segment));
    if (std::filesystem::exists(arena_.directory() + "/rank-0.control"))
      control_.emplace(arena::Control::attach(arena_.directory(), 0));
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeAgent() {
    let_reserve();
    let_restore();
    const std::uint64_t one = 1;
    if (::write(stop_.get(), &one, sizeof(one)) != sizeof(one)) std::abort();
    thread_.join();
  }

  // ---- The test's side ----

  arena::Control& control() { return *control_; }
  int hellos() const { return hellos_; }
  Json last_hello() {
    const std::lock_guard lock(mutex_);
    return last_hello_;
  }
  Json last_reserve() {
    const std::lock_guard lock(mutex_);
    return last_reserve_;
  }
  // Answers every request of this type so from now on.
  void answer_with(const std::string& type, Json answer) {
    const std::lock_guard lock(mutex_);
    answers_[type] = std::move(answer);
  }

  // Requests to reserve stay unanswered, and so do all that come later, until let_reserve().
  void hold_reserve() { holds_reserve_ = true; }
  void let_reserve() {
    holds_reserve_ = false;
    holds_reserve_.notify_all();
  }
  int reserves() const { return reserves_; }

  // Adds a slot to each segment, and grants it.
  void add_slots() {
    const std::lock_guard lock(mutex_);
    for (auto& segment : segments_) segment.grow(4, 1);
    control_->grant({control_->grant().sequence + 1, {3, 3, 3, 3}});
  }
  // Gives the next grant: slots in turn.
  void grant() {
    const auto before = control_->grant();
    const auto slot = static_cast<std::uint8_t>(before.sequence % 3);
    control_->grant({before.sequence + 1, {slot, slot, slot, slot}});
  }
  // Gives the next grant, with a spare slot for the private shard: what the trainer has left of the last one.
  void grant_with_spare() {
    const std::lock_guard lock(mutex_);
    const auto before = control_->grant();
    const auto slot = static_cast<std::uint8_t>(before.sequence % 3);
    arena::Grant next{before.sequence + 1, {slot, slot, slot, slot}};
    std::uint8_t& own = next.slots[share_.stored];
    if (!before.spare) {
      next.spare = static_cast<std::uint8_t>((slot + 1) % 3);
    } else {
      const std::uint8_t last = before.slots[share_.stored];
      const bool in_spare = control_->used_spare();
      next.spare = in_spare ? last : *before.spare;
      own = static_cast<std::uint8_t>(3 - last - *before.spare);
    }
    control_->grant(next);
  }
  // The piece of one shard, as its segment has it for a checkpoint.
  struct Piece {
    arena::Manifest manifest;
    std::vector<std::byte> bytes;
  };
  std::optional<Piece> piece(const std::string& shard, CheckpointId checkpoint) {
    const std::lock_guard lock(mutex_);
    for (auto& segment : segments_)
      for (std::uint32_t i = 0; i < segment.slots(); ++i)
        if (auto manifest = segment.slot(i).read();
            manifest && segment.spec().shard == shard && manifest->checkpoint == checkpoint) {
          const std::byte* data = segment.slot(i).data();
          return Piece{*manifest, {data, data + manifest->length_bytes}};
        }
    return std::nullopt;
  }
  // The gradient record beside that piece.
  std::optional<std::vector<std::byte>> record(const std::string& shard, CheckpointId checkpoint) {
    const std::lock_guard lock(mutex_);
    for (auto& segment : segments_)
      for (std::uint32_t i = 0; i < segment.slots(); ++i)
        if (segment.spec().shard == shard && segment.slot(i).checkpoint() == checkpoint)
          if (const auto found = segment.slot(i).record()) return std::vector(found->data.begin(), found->data.end());
    return std::nullopt;
  }
  // Flips one byte of a stored piece.
  void damage(const std::string& shard, CheckpointId checkpoint, std::size_t offset_bytes) {
    const std::lock_guard lock(mutex_);
    for (auto& segment : segments_)
      for (std::uint32_t i = 0; i < segment.slots(); ++i)
        if (segment.spec().shard == shard && segment.slot(i).checkpoint() == checkpoint)
          segment.writable_slot(i).data()[offset_bytes] ^= std::byte{1};
  }
  // Seals every slot that is empty, as no agent does.
  void seal_empty_slots() {
    const std::lock_guard lock(mutex_);
    for (auto& segment : segments_)
      for (std::uint32_t i = 0; i < segment.slots(); ++i)
        if (!segment.slot(i).checkpoint())
          segment.writable_slot(i).seal(arena::SealedFields{.checkpoint = CheckpointId(1, 900).word()});
  }
  // ---- A piece that arrives while a rank restores ----

  // A stored piece that comes to its slot once more. The test's thread uses it while requests to restore are held.
  class Arriving {
   public:
    Arriving(arena::Segment& segment, std::uint32_t slot, Piece piece)
        : fd_(segment.fd()), index_(slot), slot_(segment.writable_slot(slot)), piece_(std::move(piece)) {}
    void begin() {
      slot_.begin();
      std::fill_n(slot_.data(), piece_.bytes.size(), std::byte{0});
      written_ = 0;
      slot_.announce(piece_.manifest);
      slot_.ring_arrival();
    }
    void write(std::size_t size_bytes) {
      std::copy_n(piece_.bytes.begin() + written_, size_bytes - written_, slot_.data() + written_);
      written_ = size_bytes;
    }
    // Its first bytes have arrived.
    void land(std::size_t size_bytes) {
      write(size_bytes);
      slot_.arrived(size_bytes);
      slot_.ring_arrival();
    }
    void damage(std::size_t offset_bytes) { slot_.data()[offset_bytes] ^= std::byte{1}; }
    void fail() {
      slot_.withdraw();
      slot_.ring_arrival();
    }
    void seal() {
      slot_.arrived(piece_.bytes.size());
      slot_.seal(piece_.manifest);
      slot_.ring_arrival();
    }
    const Piece& piece() const { return piece_; }
    Json entry(std::size_t fd) const {
      const std::string& shard = piece_.manifest.shard;
      return {{"fd", fd},
              {"slot", index_},
              {"checkpoint", piece_.manifest.checkpoint.word()},
              {"private", shard.ends_with("private")},
              {"whole", false}};
    }
    int fd() const { return fd_; }

   private:
    int fd_;
    std::uint32_t index_;
    arena::WritableSlot slot_;
    Piece piece_;
    std::size_t written_ = 0;
  };
  // Takes the piece out of its slot, and tells the next rank that asks to restore that it is arriving. Further requests
  // to restore stay unanswered until let_restore().
  Arriving& arrive(const std::string& shard, CheckpointId checkpoint) {
    auto found = piece(shard, checkpoint);
    const std::lock_guard lock(mutex_);
    const Place place = find(shard, checkpoint);
    Arriving& arriving = arriving_.emplace_back(*place.segment, place.slot, std::move(*found));
    arriving.begin();
    tells_arrivals_ = holds_restore_ = true;
    restores_ = 0;
    return arriving;
  }
  // Tells it of this piece, too, which is not arriving, because all of it is here.
  void tell_whole(const std::string& shard, CheckpointId checkpoint) {
    const std::lock_guard lock(mutex_);
    told_whole_.emplace_back(shard, checkpoint);
  }
  // Returns once such a request is held.
  void await_held_restore() const {
    for (int asked = restores_; asked < 2; asked = restores_) restores_.wait(asked);
  }
  void let_restore() {
    holds_restore_ = false;
    holds_restore_.notify_all();
  }
  // Answers the request that is held by saying once more what is arriving.
  void tell_arrivals() {
    tells_arrivals_ = true;
    let_restore();
  }

  // Ends while a request to restore is held. The engine finds the next agent.
  void die() {
    dies_ = true;
    let_restore();
  }
  // Answers from now on that nothing is stored.
  void lose_everything() { has_lost_everything_ = true; }

  // Closes all connections; new ones are accepted.
  void hang_up() {
    const std::uint64_t one = 1;
    if (::write(hang_up_.get(), &one, sizeof(one)) != sizeof(one)) std::abort();
  }
  // The last goodbye, null before it.
  Json last_bye() {
    const std::lock_guard lock(mutex_);
    return last_bye_;
  }
  Json last_trouble() {
    const std::lock_guard lock(mutex_);
    return last_trouble_;
  }
  std::vector<Json> corrupt_reports() {
    const std::lock_guard lock(mutex_);
    return corrupt_reports_;
  }

  // For the incarnations that begin from now on.
  void share(const core::Share& share) {
    const std::lock_guard lock(mutex_);
    share_ = share;
  }

 private:
  void serve() {
    std::list<FrameSocket> clients;
    for (;;) {
      std::vector<pollfd> entries = {
          {stop_.get(), POLLIN, 0}, {hang_up_.get(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
      for (const FrameSocket& client : clients) entries.push_back({client.fd(), POLLIN, 0});
      ::poll(entries.data(), entries.size(), -1);
      if (entries[0].revents != 0) return;
      std::uint64_t count = 0;
      if (entries[1].revents != 0 && ::read(hang_up_.get(), &count, sizeof(count)) == sizeof(count)) clients.clear();
      if (auto client = listener_.accept()) clients.push_back(std::move(*client));
      for (auto client = clients.begin(); client != clients.end();) {
        bool is_gone = false;
        while (auto frame = client->try_receive()) {
          const std::lock_guard lock(mutex_);
          std::vector<int> fds;
          const Json answer = handle(frame->body, fds);
          if (dies_.exchange(false)) {
            is_gone = true;
            break;
          }
          try {
            client->send(answer, fds, Deadline::in_ms(5000));
          } catch (const Failure&) {
            break;  // it did not wait for the answer
          }
        }
        client = is_gone || client->closed() ? clients.erase(client) : std::next(client);
      }
    }
  }

  Json handle(const Json& request, std::vector<int>& fds) {
    const std::string type = request.at("type");
    Json answer = {{"status", 0}};
    if (type == "hello") {
      last_hello_ = request;
      ++hellos_;
      if (request.at("incarnation") == 0) {
        control_.emplace(arena::Control::create(arena_.directory(), 0));
        ++incarnation_;
      }
      fds = {control_->fd()};
    } else if (type == "reserve") {
      ++reserves_;
      holds_reserve_.wait(true);
      last_reserve_ = request;
      for (const Json& slot : request.at("slots"))
        reserve(slot.at("shard"), slot.at("bytes"), slot.at("layout_bytes"), fds);
      if (control_->grant().sequence == control_->used_grant()) grant();
    } else if (type == "restore") {
      answer = restore(request, fds);
    } else if (type == "bye") {
      last_bye_ = request;
    } else if (type == "trouble") {
      last_trouble_ = request;
    } else if (type == "corrupt") {
      corrupt_reports_.push_back(request);
      quarantine(request.at("shard"), CheckpointId::from_word(request.at("checkpoint")));
      answer = stored(fds);
    }
    if (const auto given = answers_.find(type); given != answers_.end()) answer.update(given->second);
    return answer;
  }

  Json restore(const Json& request, std::vector<int>& fds) {
    ++restores_;
    restores_.notify_all();
    if (!tells_arrivals_) holds_restore_.wait(true);
    if (!tells_arrivals_.exchange(false) || !request.at("follows_arrivals").get<bool>()) return stored(fds);
    holds_restore_ = true;
    Json answer = {{"status", 0}, {"incarnation", incarnation_ + 1}};
    for (const Arriving& arriving : arriving_) {
      answer["arriving"].push_back(arriving.entry(fds.size()));
      fds.push_back(arriving.fd());
    }
    for (const auto& [shard, checkpoint] : told_whole_) {
      const Place place = find(shard, checkpoint);
      answer["arriving"].push_back({{"fd", fds.size()},
                                    {"slot", place.slot},
                                    {"checkpoint", checkpoint.word()},
                                    {"private", shard.ends_with("private")},
                                    {"whole", true}});
      fds.push_back(place.segment->fd());
    }
    return answer;
  }

  void reserve(const std::string& shard, std::uint64_t bytes, std::uint64_t layout_bytes, std::vector<int>& fds) {
    const auto found = std::find_if(segments_.begin(), segments_.end(), [&](const auto& segment) {
      return segment.spec().shard == shard && segment.slot(0).fits(bytes, layout_bytes);
    });
    if (found != segments_.end()) return fds.push_back(found->fd());
    segments_.push_back(arena_.create_segment(
        {arena::SegmentKind::local, 0, 3, shard, bytes, arena::manifest_bytes(bytes, layout_bytes), 4}, 1));
    fds.push_back(segments_.back().fd());
  }

  struct Place {
    arena::Segment* segment = nullptr;
    std::uint32_t slot = 0;
  };
  Place find(const std::string& shard, CheckpointId checkpoint) {
    for (auto& segment : segments_)
      for (std::uint32_t i = 0; i < segment.slots(); ++i)
        if (segment.spec().shard == shard && segment.slot(i).checkpoint() == checkpoint) return {&segment, i};
    return {};
  }
  void quarantine(const std::string& shard, CheckpointId checkpoint) {
    if (const Place place = find(shard, checkpoint); place.segment != nullptr)
      place.segment->writable_slot(place.slot).drop(checkpoint);
  }

  std::vector<std::string> shards() const {
    auto all = core::parts_of("rank0", share_.of);
    all.emplace_back("rank0.private");
    return all;
  }

  // The newest checkpoint that all parts have.
  Json stored(std::vector<int>& fds) {
    CheckpointId newest;
    const auto names = shards();
    for (auto& segment : segments_)
      for (std::uint32_t i = 0; i < segment.slots() && !has_lost_everything_; ++i) {
        const CheckpointId checkpoint = segment.slot(i).checkpoint();
        if (checkpoint > newest && std::all_of(names.begin(), names.end(), [&](const std::string& name) {
              return find(name, checkpoint).segment != nullptr;
            }))
          newest = checkpoint;
      }
    Json answer = {{"status", 0},
                   {"found", bool(newest)},
                   {"incarnation", incarnation_ + newest.incarnation()},
                   {"share", {{"first", share_.first}, {"of", share_.of}, {"stored", share_.stored}}}};
    if (!newest) return answer;
    answer["iteration"] = newest.iteration();
    answer["fetch_ms"] = 1.5;
    for (const std::string& name : names) {
      const Place place = find(name, newest);
      const Json entry = {{"fd", fds.size()}, {"slot", place.slot}, {"tier", 1}};
      if (name == names.back())
        answer["private"] = entry;
      else
        answer["main"].push_back(entry);
      fds.push_back(place.segment->fd());
    }
    return answer;
  }

  arena::NodeArena arena_;
  FrameListener listener_;
  UniqueFd stop_{::eventfd(0, EFD_CLOEXEC)};
  UniqueFd hang_up_{::eventfd(0, EFD_CLOEXEC)};
  std::mutex mutex_;  // for all below
  std::list<arena::Segment> segments_;
  std::optional<arena::Control> control_;
  std::atomic<int> hellos_{0};
  std::atomic<int> reserves_{0};
  std::atomic<bool> holds_reserve_{false};
  std::atomic<bool> holds_restore_{false}, tells_arrivals_{false}, dies_{false}, has_lost_everything_{false};
  std::atomic<int> restores_{0};
  std::list<Arriving> arriving_;
  std::vector<std::pair<std::string, CheckpointId>> told_whole_;
  std::uint64_t incarnation_ = 0;
  core::Share share_;
  Json last_hello_, last_reserve_, last_bye_, last_trouble_;
  std::map<std::string, Json> answers_;
  std::vector<Json> corrupt_reports_;
  std::thread thread_;
};

}  // namespace ckpt::client
