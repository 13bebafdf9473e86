#include "agent/path_desk.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ckpt::agent {
namespace {

using protocol::NodeId;
using protocol::PathMember;
using protocol::Rank;

// What a rank's trainer says is repeated each tick for a second after it changed, and then now and then; that it has
// ended, for five seconds.
constexpr std::int64_t tick_ms = 100;
constexpr std::uint32_t ticks_of_news = 10, ticks_between = 10, ticks_of_end = 50;
constexpr std::uint64_t piece_bytes_max = std::uint64_t{1} << 50;

PathTold told_of(std::uint64_t incarnation, Rank from, Rank to, const arena::PathWord& word) {
  PathTold told{incarnation,
                from,
                to,
                {},
                word.state.chunk_bytes,
                word.piece_bytes,
                word.state.version,
                word.state.length_bytes,
                word.state.promised,
                word.state.has_given_up};
  if (word.id) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(word.id->data());
    told.id.assign(bytes, bytes + word.id->size());
  }
  return told;
}

arena::PathWord word_of(const PathTold& told) {
  arena::PathWord word;
  if (told.id.size() == arena::path_id_bytes) std::memcpy(word.id.emplace().data(), told.id.data(), told.id.size());
  word.piece_bytes = told.piece_bytes;
  word.state = {told.version, told.length_bytes, told.chunk_bytes, told.promised, told.has_given_up};
  return word;
}

// The newest version below, as a word: all that is older.
Version before(Version version) { return Version::from_word(version.word() - 1); }

}  // namespace

void PathDesk::tell(const protocol::TellPath& tell) {
  if (paths_.contains(tell.rank)) gone(tell.rank);  // of an earlier life
  Path& path = paths_[tell.rank];
  path.incarnation = tell.incarnation;
  path.group = tell.path;
  if (!tell.path.members.empty()) return open(tell.rank, path);
  arena::Landing::remove(with_.directory, tell.rank);
  end(tell.rank, path, tell.path.refusal);
}

// An agent that was started again finds the landing of the life that goes on: the trainer has it mapped.
void PathDesk::open(Rank rank, Path& path) {
  const arena::Landing::Group group{path.incarnation, path.group.member,
                                    static_cast<std::uint32_t>(path.group.members.size())};
  path.words.resize(path.group.members.size());
  try {
    auto found = arena::Landing::attach(with_.directory, rank);
    if (found.group() == group) path.landing = std::make_shared<arena::Landing>(std::move(found));
  } catch (const Failure&) {
    // There is none, or none that could be used.
  }
  try {
    if (path.landing == nullptr)
      path.landing = std::make_shared<arena::Landing>(arena::Landing::create(with_.directory, rank, group));
    path.is_made = path.landing->find_places();
    path.reserved_bytes = path.landing->size_bytes();
    with_.segments.take_besides(path.reserved_bytes);
  } catch (const Failure& failure) {
    return end(rank, path, failure.what());
  }
  if (!repeat_at_) repeat_at_ = Deadline::in_ms(tick_ms);
  look(rank);
}

// From here on it is the host's, and all members are to know, who may be waiting for this one. The landing stays where
// its trainer may write to it.
void PathDesk::end(Rank rank, Path& path, const std::string& why) {
  if (!path.trouble.empty()) return;
  path.trouble = why;
  path.ticks = 0;
  if (!repeat_at_) repeat_at_ = Deadline::in_ms(tick_ms);
  tell_members(rank, path);
  tell_trainer(rank, path);
  with_.notice("what rank " + std::to_string(rank) + " captures goes from host to host: " + why);
  with_.look();
}

void PathDesk::refuse(Rank rank, const std::string& why) {
  if (const auto found = paths_.find(rank); found != paths_.end()) end(rank, found->second, why);
}

void PathDesk::gone(Rank rank) {
  const auto found = paths_.find(rank);
  if (found != paths_.end()) {
    Path& path = found->second;
    if (path.landing != nullptr) {
      // The others would find out by the deadline of a step.
      arena::PathWord last = path.words[path.group.member].value_or(arena::PathWord());
      last.state.has_given_up = true;
      path.words[path.group.member] = last;
      tell_members(rank, path);
      with_.segments.give_back_besides(path.reserved_bytes);
    }
    paths_.erase(found);
    with_.look();
  }
  arena::Landing::remove(with_.directory, rank);
}

// The trainer's word, or that its path has ended whatever it says.
std::optional<arena::PathWord> PathDesk::own_word(const Path& path) {
  if (path.group.members.empty()) return std::nullopt;
  auto own = path.words[path.group.member];
  if (path.trouble.empty()) return own;
  if (!own) own.emplace();
  own->state.has_given_up = true;
  return own;
}

void PathDesk::tell_members(Rank rank, const Path& path) const {
  const auto own = own_word(path);
  if (!own) return;
  for (const PathMember& member : path.group.members) {
    if (member.rank != rank) with_.send(member.node, told_of(path.incarnation, rank, member.rank, *own));
  }
}

// As if another member had given it up.
void PathDesk::tell_trainer(Rank rank, const Path& path) const {
  if (path.landing == nullptr) return;
  const std::size_t another = path.group.member == 0 ? 1 : 0;
  arena::PathWord last = path.words[another].value_or(arena::PathWord());
  last.state.has_given_up = true;
  path.landing->board().hear(another, last);
  with_.ring(rank);
}

void PathDesk::look(Rank rank) {
  const auto found = paths_.find(rank);
  if (found == paths_.end() || found->second.landing == nullptr) return;
  Path& path = found->second;
  const arena::PathBoard board = path.landing->board();
  if (const auto word = board.told(); word && word != path.words[path.group.member]) {
    path.words[path.group.member] = word;
    path.ticks = 0;
    tell_members(rank, path);
    if (word->state.has_given_up) end(rank, path, board.failure().value_or("its trainer has given it up"));
    make_places(rank, path);
  }
  if (const auto failure = board.failure()) end(rank, path, *failure);
  with_.look();
}

// From no other life, and from nobody else than who it says.
void PathDesk::heard(NodeId from, const PathTold& told) {
  const auto found = paths_.find(told.to);
  if (found == paths_.end()) return;
  Path& path = found->second;
  const auto& members = path.group.members;
  const auto member = std::find_if(members.begin(), members.end(), [&](const PathMember& each) {
    return each.rank == told.from && each.node == from && each.rank != told.to;
  });
  if (member == members.end() || told.incarnation != path.incarnation) return;
  if (!path.trouble.empty()) {
    // It may have missed that, and be waiting.
    if (!told.has_given_up) with_.send(from, told_of(path.incarnation, told.to, told.from, *own_word(path)));
    return;
  }
  const auto number = static_cast<std::size_t>(member - members.begin());
  arena::PathWord word = word_of(told);
  auto& known = path.words[number];
  // What overtook it stays: words come in any order.
  if (known) {
    if (known->state.has_given_up) return;
    if (!word.id) word.id = known->id;
    if (word.piece_bytes == 0) word.piece_bytes = known->piece_bytes;
    if (!word.state.has_given_up &&
        std::pair(word.state.version, word.state.promised) < std::pair(known->state.version, known->state.promised))
      word.state = known->state;
  }
  if (known == word) return;
  known = word;
  path.landing->board().hear(number, word);
  with_.ring(told.to);
  if (word.state.has_given_up) end(told.to, path, "rank " + std::to_string(told.from) + " has given it up");
  make_places(told.to, path);
}

// Once all have said how large their pieces are. It may take as long as touching so much memory.
void PathDesk::make_places(Rank rank, Path& path) {
  if (path.is_made || path.is_being_made || !path.trouble.empty()) return;
  std::vector<std::uint64_t> capacities_bytes;
  for (std::size_t member = 0; member < path.words.size(); ++member) {
    const auto& word = path.words[member];
    if (!word || word->piece_bytes == 0) return;
    capacities_bytes.push_back(member == path.group.member ? 0 : std::min(word->piece_bytes, piece_bytes_max));
  }
  const std::uint64_t wanted_bytes = arena::Landing::file_bytes(capacities_bytes) - path.landing->size_bytes();
  try {
    // What snapshots need comes first: the path can do without its places, they cannot do without their slots.
    const std::uint64_t own_bytes = std::min(path.words[path.group.member]->piece_bytes, piece_bytes_max);
    with_.segments.check_space(wanted_bytes + with_.bytes_to_come(own_bytes));
  } catch (const Failure& failure) {
    return end(rank, path, failure.what());
  }
  path.is_being_made = true;
  path.reserved_bytes += wanted_bytes;
  with_.segments.take_besides(wanted_bytes);
  maker_.submit([this, rank, incarnation = path.incarnation, landing = path.landing, capacities_bytes] {
    std::optional<Failure> failure;
    try {
      landing->make_places(capacities_bytes);
    } catch (const Failure& refused) {
      failure = refused;
    } catch (const std::exception& error) {
      failure = Failure(CKPT_ERR_SYSTEM, std::string("cannot make a landing: ") + error.what());
    }
    with_.queue.post([this, rank, incarnation, failure] { made(rank, incarnation, failure); });
  });
}

void PathDesk::made(Rank rank, std::uint64_t incarnation, std::optional<Failure> failure) {
  const auto found = paths_.find(rank);
  if (found == paths_.end() || found->second.incarnation != incarnation) return;
  Path& path = found->second;
  path.is_being_made = false;
  path.is_made = !failure;
  if (!failure) return with_.ring(rank);
  const std::uint64_t kept_bytes = path.landing->size_bytes();
  with_.segments.give_back_besides(path.reserved_bytes - kept_bytes);
  path.reserved_bytes = kept_bytes;
  end(rank, path, failure->what());
}

std::optional<PathDesk::Found> PathDesk::find(const std::string& shard, NodeId source) {
  for (auto& [rank, path] : paths_) {
    if (path.landing == nullptr) continue;
    for (std::size_t member = 0; member < path.group.members.size(); ++member) {
      const PathMember& each = path.group.members[member];
      if (each.shard == shard && each.node == source && each.rank != rank) return Found{rank, &path, member};
    }
  }
  return std::nullopt;
}

// Before the trainer has begun with any version, nothing is on its way.
bool PathDesk::lives(const Path& path) {
  if (!path.is_made || !path.trouble.empty()) return false;
  const auto& own = path.words[path.group.member];
  return own && own->state.version != 0;
}

std::optional<PathDesk::Place> PathDesk::place_of(const protocol::PieceInfo& piece, NodeId source) {
  const auto found = find(piece.shard, source);
  if (!found) return std::nullopt;
  const Path& path = *found->path;
  if (!lives(path) || piece.version.incarnation() != path.incarnation) return std::nullopt;
  if (path.landing->board().taken(found->member) >= piece.version) return std::nullopt;  // may be overwritten
  if (path.landing->bytes(found->member).size() < piece.length_bytes) return std::nullopt;
  return Place{found->rank, found->member, path.landing};
}

std::optional<PathDesk::Place> PathDesk::place_to_wait_for(const protocol::PieceInfo& piece, NodeId source) {
  const auto found = find(piece.shard, source);
  if (!found || !found->path->patience[found->member].waits()) return std::nullopt;
  return place_of(piece, source);
}

void PathDesk::fetching(const protocol::PieceInfo& piece, NodeId source) {
  const auto found = find(piece.shard, source);
  if (!found) return;
  auto& fetching = found->path->fetching;
  if (!fetching.contains(found->member)) take(found->rank, *found->path, found->member, before(piece.version));
  fetching[found->member] = std::max(fetching[found->member], piece.version);
}

void PathDesk::brought(const protocol::PieceInfo& piece, NodeId source, std::optional<std::uint64_t> landed_bytes) {
  const auto found = find(piece.shard, source);
  if (!found) return;
  Path& path = *found->path;
  path.landed_bytes += landed_bytes.value_or(0);
  LandingPatience& patience = path.patience[found->member];
  if (landed_bytes)
    patience.waited(*landed_bytes >= piece.length_bytes / 2);
  else
    patience.fetched_at_once();
}

void PathDesk::fetched(const protocol::PieceInfo& piece, NodeId source) {
  const auto found = find(piece.shard, source);
  if (!found) return;
  Path& path = *found->path;
  if (path.fetching[found->member] <= piece.version) path.fetching.erase(found->member);
  take(found->rank, path, found->member, piece.version);
}

void PathDesk::committed(Version version) {
  for (auto& [rank, path] : paths_) {
    if (path.landing == nullptr || version.incarnation() != path.incarnation) continue;
    for (std::size_t member = 0; member < path.group.members.size(); ++member) {
      if (!path.fetching.contains(member)) take(rank, path, member, version);
    }
  }
}

void PathDesk::take(Rank rank, Path& path, std::size_t member, Version version) {
  if (version.incarnation() != path.incarnation || version <= path.landing->board().taken(member)) return;
  path.landing->board().taken(member, version);
  with_.ring(rank);
}

void PathDesk::tick() {
  if (!repeat_at_ || !repeat_at_->passed()) return;
  repeat_at_.reset();
  for (auto& [rank, path] : paths_) {
    look(rank);
    const bool has_ended = !path.trouble.empty();
    if (has_ended && path.ticks >= ticks_of_end) continue;
    repeat_at_ = Deadline::in_ms(tick_ms);
    ++path.ticks;
    if (has_ended || path.ticks <= ticks_of_news || path.ticks % ticks_between == 0) tell_members(rank, path);
  }
}

std::optional<int> PathDesk::landing_fd(Rank rank) const {
  const auto found = paths_.find(rank);
  if (found == paths_.end() || found->second.landing == nullptr || !found->second.trouble.empty()) return std::nullopt;
  return found->second.landing->fd();
}

PathDesk::Status PathDesk::status(Rank rank) const {
  const auto found = paths_.find(rank);
  if (found == paths_.end()) return {};
  const Path& path = found->second;
  return {path.trouble.empty(), lives(path), path.landed_bytes, path.trouble};
}

}  // namespace ckpt::agent
