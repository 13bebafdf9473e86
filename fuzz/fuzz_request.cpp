// What trainers ask of their agent, out of any JSON: a request within its bounds, or a Failure with a sentence. Each
// input is tried as every kind of request.
#include "agent/trainers/request_codec.hpp"
#include "base/error.hpp"
#include "fuzz/fuzz.hpp"
#include "options/options.hpp"

namespace ckpt::fuzz {
namespace {

constexpr std::int64_t day_ms = 24ll * 3600 * 1000;
constexpr std::uint64_t piece_max_bytes = std::uint64_t{1} << 50;

template <class Parse, class Check>
void check(const nlohmann::json& request, Parse parse, Check is_sound) {
  try {
    require(is_sound(parse(request)));
  } catch (const Failure& failure) {
    require(failure.status() == CKPT_ERR_INVALID && failure.what()[0] != '\0');
  }
}

bool is_timeout(std::int64_t timeout_ms) { return timeout_ms >= 0 && timeout_ms <= day_ms; }
bool is_shard(const std::string& name) { return is_plain_name(name) && !core::is_reserved(name); }

bool is_sound_hello(const agent::HelloRequest& wanted) {
  const auto& hello = wanted.hello;
  return hello.rank < hello.world_size && hello.rank < core::held_rank &&
         hello.incarnation <= CheckpointId::incarnation_max && is_shard(hello.main_shard) &&
         is_shard(hello.private_shard) && hello.main_shard != hello.private_shard &&
         is_timeout(wanted.claim_timeout_ms.value_or(0));
}

bool is_sound_reservation(const agent::ReserveRequest& wanted) {
  for (const agent::SlotRequest& slot : wanted.slots) {
    if (!is_shard(slot.shard) || slot.bytes > piece_max_bytes || slot.layout_bytes > piece_max_bytes) return false;
  }
  return !wanted.slots.empty() && wanted.slots.size() <= core::captures_max && wanted.shortage.size() <= 1000;
}

}  // namespace

void try_input(Input input) {
  const auto request = nlohmann::json::parse(text_of(input), nullptr, false);
  if (!request.is_object()) return;  // frames bring nothing else
  check(request, agent::request_type, [](const std::string&) { return true; });
  check(request, agent::hello_job, [](const std::string&) { return true; });
  check(request, agent::hello_request, is_sound_hello);
  check(request, agent::restore_request, [](const auto& wanted) { return is_timeout(wanted.timeout_ms); });
  check(request, agent::restored_request, [](const std::string& sentence) { return sentence.size() <= 1000; });
  check(request, agent::trouble_request, [](const std::string& sentence) { return sentence.size() <= 1000; });
  check(request, agent::corrupt_request, [](const agent::CorruptRequest& corrupt) {
    return is_shard(corrupt.shard) && is_timeout(corrupt.timeout_ms.value_or(0));
  });
  check(request, agent::reserve_request, is_sound_reservation);
}

std::vector<std::string> seeds() {
  return {
      (R"({"type":"hello","protocol":2,"job":"j","rank":3,"world_size":4,"instance":9,"incarnation":2,"shard":"rank3",)"
       R"("private_shard":"rank3.private","options":{"protection":"xor:4","placement":"auto","claim_timeout_ms":5}})"),
      R"({"type":"restore","timeout_ms":1000,"replication":true})",
      R"({"type":"restored","no_replication":"too many open files"})",
      R"({"type":"corrupt","shard":"rank3","checkpoint":1099511627777,"timeout_ms":10})",
      R"({"type":"reserve","slots":[{"shard":"rank3","bytes":100,"layout_bytes":10}],"shortage":"64 MiB"})"};
}

}  // namespace ckpt::fuzz
