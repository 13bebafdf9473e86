// What a message says, whether it comes by itself or in a batch.
#pragma once

#include <vector>

#include "protocol/messages.hpp"

namespace ckpt::sim {

inline std::vector<const protocol::Report*> reports_in(const protocol::Message& message) {
  std::vector<const protocol::Report*> reports;
  if (const auto* report = std::get_if<protocol::Report>(&message)) reports.push_back(report);
  if (const auto* report_batch = std::get_if<protocol::ReportBatch>(&message)) {
    for (const protocol::Report& report : report_batch->reports) reports.push_back(&report);
  }
  return reports;
}

// For node `to`, which receives the message.
inline std::vector<const protocol::Directive*> directives_for(protocol::NodeId to, const protocol::Message& message) {
  std::vector<const protocol::Directive*> directives;
  if (const auto* directive = std::get_if<protocol::Directive>(&message)) directives.push_back(directive);
  if (const auto* directive_batch = std::get_if<protocol::DirectiveBatch>(&message)) {
    for (const protocol::DirectiveBatch::Item& item : directive_batch->items) {
      if (item.to == to) directives.push_back(&item.directive);
    }
  }
  return directives;
}

}  // namespace ckpt::sim
