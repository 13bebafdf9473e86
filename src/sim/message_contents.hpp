// Finds the reports or directives in a message, for the simulator. A batch has several.
#pragma once

#include <vector>

#include "core/messages.hpp"

namespace ckpt::sim {

inline std::vector<const core::Report*> reports_in(const core::Message& message) {
  std::vector<const core::Report*> reports;
  if (const auto* report = std::get_if<core::Report>(&message)) reports.push_back(report);
  if (const auto* report_batch = std::get_if<core::ReportBatch>(&message)) {
    for (const core::Report& report : report_batch->reports) reports.push_back(&report);
  }
  return reports;
}

// The directives in the message that are for node `to`, which receives the message. Those for other nodes are left out.
inline std::vector<const core::Directive*> directives_for(core::NodeId to, const core::Message& message) {
  std::vector<const core::Directive*> directives;
  if (const auto* directive = std::get_if<core::Directive>(&message)) directives.push_back(directive);
  if (const auto* directive_batch = std::get_if<core::DirectiveBatch>(&message)) {
    for (const core::DirectiveBatch::Item& item : directive_batch->items) {
      if (item.to == to) directives.push_back(&item.directive);
    }
  }
  return directives;
}

}  // namespace ckpt::sim
