// What trainers and tools ask, out of the JSON that came over the socket. Nothing of it is believed but its form: these
// throw Failure (CKPT_ERR_INVALID), in a sentence for whoever asked, where a field is missing or out of range.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "agent/trainer_requests.hpp"

namespace ckpt::agent {

[[noreturn]] void refuse_request(const std::string& sentence);

struct HelloRequest {
  protocol::TrainerHello hello;
  std::vector<std::uint64_t> open_engines;  // of its process, by instance
  // Of the trainer's options, where it names them.
  std::optional<std::int64_t> claim_timeout_ms;
  std::optional<std::string> protection, placement;
};

std::string request_type(const nlohmann::json& request);
std::string hello_job(const nlohmann::json& request);  // of an engine of this version
HelloRequest hello_request(const nlohmann::json& request);
Asker bye_request(const nlohmann::json& request);  // from an engine that has lost its connection
RestoreRequest restore_request(const nlohmann::json& request);
std::string restored_request(const nlohmann::json& request);  // why it cannot take part in its path; "" where it can
CorruptRequest corrupt_request(const nlohmann::json& request);
ReserveRequest reserve_request(const nlohmann::json& request);

}  // namespace ckpt::agent
