// Records of the coordination store that say which agent serves a node. What is taken is in bounds, and the same when
// it is written and read again.
#include "coord/node_registry.hpp"
#include "fuzz/fuzz.hpp"

namespace ckpt::fuzz {
namespace {

const std::string name = "a";

// Of one record.
class OneRecord : public coord::Store {
 public:
  std::optional<coord::Entry> get(const std::string&) override { return record_; }
  std::optional<std::uint64_t> put_if(const std::string& key, const std::string& value, std::uint64_t) override {
    record_ = {key, value, 1};
    return 1;
  }
  std::vector<coord::Entry> list(const std::string&) override { return {}; }
  std::vector<std::string> keys(const std::string&) override { return {}; }
  void remove(const std::string&) override {}

 private:
  std::optional<coord::Entry> record_;
};

}  // namespace

void try_input(Input input) {
  const auto node = coord::node_entry({"nodes/" + name, text_of(input), 1});
  if (!node) return;
  require(node->name == name && node->id < 1u << 24 && node->pid >= 0);
  OneRecord store;
  coord::register_node(store, *node);
  require(coord::node_entry(*store.get("nodes/" + name)) == node);
}

std::vector<std::string> seeds() {
  OneRecord store;
  std::vector<std::string> texts;
  for (const coord::NodeEntry& node :
       {coord::NodeEntry{name, 0, 0, 0, 0, ""},
        coord::NodeEntry{name, (1u << 24) - 1, UINT64_MAX, 7, INT64_MAX, std::string("127.0.0.1:4242\0\xff", 16)}}) {
    coord::register_node(store, node);
    texts.push_back(store.get("")->value);
  }
  return texts;
}

}  // namespace ckpt::fuzz
