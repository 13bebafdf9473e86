// What a message says, whether it comes by itself or in a bag.
#pragma once

#include <vector>

#include "protocol/messages.hpp"

namespace ckpt::sim {

inline std::vector<const protocol::Report*> reports_in(const protocol::Message& message) {
  std::vector<const protocol::Report*> reports;
  if (const auto* report = std::get_if<protocol::Report>(&message)) reports.push_back(report);
  if (const auto* gathered = std::get_if<protocol::Gathered>(&message)) {
    for (const protocol::Report& report : gathered->reports) reports.push_back(&report);
  }
  return reports;
}

// For node `to`, which receives the message.
inline std::vector<const protocol::Directive*> directives_for(protocol::NodeId to, const protocol::Message& message) {
  std::vector<const protocol::Directive*> directives;
  if (const auto* directive = std::get_if<protocol::Directive>(&message)) directives.push_back(directive);
  if (const auto* dealt = std::get_if<protocol::Dealt>(&message)) {
    for (const protocol::Dealt::Item& item : dealt->items) {
      if (item.to == to) directives.push_back(&item.directive);
    }
  }
  return directives;
}

}  // namespace ckpt::sim
