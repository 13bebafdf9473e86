// Parses the JSON requests that trainers and tools send to the agent's socket. It trusts nothing. If a field is missing
// or out of range, these functions throw Failure (CKPT_ERR_INVALID) with a sentence for the sender.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "agent/trainers/trainer_requests.hpp"

namespace ckpt::agent {

// Throws Failure (CKPT_ERR_INVALID) with this sentence.
[[noreturn]] void refuse_request(const std::string& sentence);

struct HelloRequest {
  core::TrainerHello hello;
  std::vector<std::uint64_t> open_engines;  // engines of the same process that may still write, by instance
  // Options of the trainer, if the request has them.
  std::optional<std::int64_t> claim_timeout_ms;
  std::optional<std::string> protection, placement;
};

std::string request_type(const nlohmann::json& request);
std::string hello_job(const nlohmann::json& request);  // also throws if the engine has another version
HelloRequest hello_request(const nlohmann::json& request);
Asker bye_request(const nlohmann::json& request);  // only for an engine that has not claimed a rank on this connection
RestoreRequest restore_request(const nlohmann::json& request);
// Returns why the trainer cannot take part in GPU replication. "" if it can, or did not ask.
std::string restored_request(const nlohmann::json& request);
std::string trouble_request(const nlohmann::json& request);
CorruptRequest corrupt_request(const nlohmann::json& request);
ReserveRequest reserve_request(const nlohmann::json& request);

}  // namespace ckpt::agent
