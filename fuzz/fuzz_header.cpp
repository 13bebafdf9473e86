// Headers of safetensors files, and the layout texts in them. What is taken as a layout has no holes, says the same
// when it is written again, and comes back from a header that it is put into.
//
// An input is the length of the layout text as 2 bytes, then the header behind its length.
#include "arena/layout.hpp"
#include "base/error.hpp"
#include "fuzz/fuzz.hpp"
#include "fuzz/samples.hpp"
#include "persist/storage_format.hpp"

namespace ckpt::fuzz {
namespace {

template <class Call>
void refuse_or_take(Call call) {
  try {
    call();
  } catch (const Failure& failure) {
    require(failure.status() == CKPT_ERR_CORRUPT || failure.status() == CKPT_ERR_INVALID);
  }
}

void try_layout(const std::string& text) {
  const arena::Layout layout = arena::parse_layout(text);
  std::uint64_t end = 0;
  for (const arena::LayoutEntry& entry : layout.entries) {
    require(entry.offset_bytes == end && arena::is_tensor_name(entry.name));
    end += entry.size_bytes;
  }
  require(end == layout.length_bytes);
  require(arena::layout_text(layout) == text);

  arena::Manifest manifest = sample_manifest("rank0", 0);
  manifest.layout = text;
  manifest.layout_hash = arena::layout_hash(text);
  manifest.length_bytes = layout.length_bytes;
  const persist::Header header = persist::encode_header(manifest, "job");
  const persist::ShardRecord record = persist::describe(manifest, header, "node-a");
  require(persist::decode_header(header.bytes, record, "x") == text);
}

void try_header(const std::string& text, std::size_t layout_bytes) {
  persist::ShardRecord record;
  const std::uint64_t length = text.size();
  std::string header(sizeof(length), '\0');
  std::memcpy(header.data(), &length, sizeof(length));
  header += text;
  record.shard = "rank0";
  record.header_bytes = header.size();
  record.header_digest = persist::digest_of(header);
  record.layout_bytes = layout_bytes;
  // As the reader will find the text, so that it gets beyond its digest.
  const std::string used = text.substr(0, text.find_last_not_of(' ') + 1);
  if (layout_bytes > 2 && layout_bytes <= used.size())
    record.layout_hash = arena::layout_hash("{" + used.substr(used.size() - (layout_bytes - 1)));
  else
    record.layout_hash = arena::layout_hash(layout_bytes == 2 ? "{}" : "");
  const std::string found = persist::decode_header(header, record, "x");
  require(found.empty() || arena::parse_layout(found).length_bytes == record.whole_bytes);
}

}  // namespace

void try_input(Input input) {
  const std::string text = text_of(input);
  refuse_or_take([&] { try_layout(text); });
  if (text.size() < 2) return;
  const std::size_t layout_bytes =
      std::size_t{static_cast<unsigned char>(text[0])} | std::size_t{static_cast<unsigned char>(text[1])} << 8;
  refuse_or_take([&] { try_layout(text.substr(2)); });
  refuse_or_take([&] { try_header(text.substr(2), layout_bytes); });
}

std::vector<std::string> seeds() {
  std::vector<std::string> texts;
  for (const auto& [elements, has_layout] : {std::pair(0, true), {7, true}, {7, false}}) {
    const arena::Manifest manifest = sample_manifest("rank0", elements, has_layout);
    texts.push_back(manifest.layout);
    const std::size_t layout_bytes = manifest.layout.size();
    const std::string length = {static_cast<char>(layout_bytes), static_cast<char>(layout_bytes >> 8)};
    texts.push_back(length + persist::encode_header(manifest, "job").bytes.substr(sizeof(std::uint64_t)));
  }
  texts.emplace_back("{}");
  return texts;
}

}  // namespace ckpt::fuzz
