#include "agent/trainers/restore_reply.hpp"

#include <fcntl.h>

#include "base/error.hpp"

namespace ckpt::agent {
namespace {

using core::Rank;
using nlohmann::json;

// A trainer may write only to segments of which it is the writer, and so pin them for its GPU. All others it can only
// read.
UniqueFd descriptor_for(Rank rank, const arena::Segment& segment) {
  if (segment.spec().kind == arena::SegmentKind::local && segment.spec().rank == rank) return duplicate(segment.fd());
  // Opens it through the descriptor, because the file may have lost its name.
  UniqueFd fd(::open(("/proc/self/fd/" + std::to_string(segment.fd())).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno(CKPT_ERR_SYSTEM, "cannot open " + segment.path() + " for a trainer");
  return fd;
}

}  // namespace

UniqueFd duplicate(int fd) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy) throw_errno(CKPT_ERR_SYSTEM, "cannot duplicate a file descriptor for a trainer");
  return copy;
}

Reply arrivals_reply(Rank rank, const std::string& main_shard, std::uint64_t incarnation,
                     const std::vector<Arrivals::News>& arrivals, const Segments& segments) {
  Reply reply;
  reply.fields = {{"incarnation", incarnation}, {"arriving", json::array()}};
  for (const auto& [slot, checkpoint, is_whole] : arrivals) {
    const auto segment = segments.find({slot.rank, slot.shard});
    if (segment == nullptr) continue;
    reply.fields["arriving"].push_back({{"fd", reply.fds.size()},
                                        {"slot", slot.slot},
                                        {"checkpoint", checkpoint.word()},
                                        {"whole", is_whole},
                                        {"private", core::parse_part(slot.shard).shard != main_shard}});
    reply.fds.push_back(descriptor_for(rank, *segment));
  }
  return reply;
}

Reply restore_reply(const core::RestoreReady& ready, const PieceIndex& index) {
  Reply reply;
  reply.message = ready.decision.text;
  reply.fields = {{"found", ready.decision.verdict == core::Verdict::restore},
                  {"behind", ready.decision.behind},
                  {"status_unknown", ready.decision.status_unknown},
                  {"incarnation", ready.incarnation},
                  {"is_replicated", ready.is_replicated},
                  {"share", {{"first", ready.share.first}, {"of", ready.share.of}, {"stored", ready.share.stored}}},
                  {"iteration", -1}};
  if (ready.decision.verdict != core::Verdict::restore) return reply;
  reply.fields["iteration"] = ready.decision.checkpoint.iteration();
  const auto add = [&](const core::RestoreSource& source) {
    const Pin piece = index.find(source.slot);
    if (piece == nullptr)
      throw Failure(CKPT_ERR_INTERNAL,
                    "a piece to restore is not in the slot that the core names: this is a bug in ckptengine; report it "
                    "with the agent's log");
    json entry = {{"fd", reply.fds.size()},
                  {"slot", source.slot.slot},
                  {"tier", static_cast<int>(source.tier)},
                  {"bytes", piece->manifest().length_bytes}};
    reply.fds.push_back(descriptor_for(ready.rank, piece->segment()));
    return entry;
  };
  reply.fields["main"] = json::array();
  for (const core::RestoreSource& part : ready.main) reply.fields["main"].push_back(add(part));
  reply.fields["private"] = add(ready.private_);
  if (ready.main.empty()) reply.fields["taken"] = json::array();
  for (const core::RestoreSource& piece : ready.taken) reply.fields["taken"].push_back(add(piece));
  return reply;
}

}  // namespace ckpt::agent
