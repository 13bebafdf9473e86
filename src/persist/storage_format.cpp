#include "persist/storage_format.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "arena/layout.hpp"
#include "base/error.hpp"
#include "kernels/digest.hpp"
#include "options/options.hpp"

namespace ckpt::persist {
namespace {

using nlohmann::json;

constexpr std::uint64_t size_max_bytes = std::uint64_t{1} << 53;
constexpr std::size_t digits = 16;
constexpr std::string_view seal_begin = "{\"xxh3\":\"";
constexpr std::string_view seal_end = "\",\n";
constexpr std::size_t seal_bytes = seal_begin.size() + digits + seal_end.size();

[[noreturn]] void refuse(const std::string& sentence) { throw Failure(CKPT_ERR_CORRUPT, sentence); }

[[noreturn]] void refuse_file(const std::string& trouble) {
  refuse(trouble + ", so this checkpoint cannot be read; use another one");
}

std::string hex(std::uint64_t value) {
  std::array<char, digits + 1> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
  return text.data();
}

template <class T>
std::optional<T> parse_number(std::string_view text, int base = 10) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::uint64_t digest_field(const json& object, const char* key) {
  const auto text = object.at(key).get<std::string>();
  const auto value = parse_number<std::uint64_t>(text, 16);
  if (!value || text != hex(*value)) refuse(std::string("\"") + key + "\" is not a digest of 16 hex digits");
  return *value;
}

std::uint64_t size_field(const json& object, const char* key) {
  const json& value = object.at(key);
  if (!value.is_number_unsigned()) refuse(std::string("\"") + key + "\" is not a whole number, 0 or more");
  if (value.get<std::uint64_t>() > size_max_bytes)
    refuse(std::string("\"") + key + "\" is out of bounds: " + value.dump());
  return value.get<std::uint64_t>();
}

std::string name_field(const json& object, const char* key) {
  auto text = object.at(key).get<std::string>();
  if (!is_plain_name(text))
    refuse(std::string("\"") + key + "\" is not a plain name (1 to 64 characters of A-Z a-z 0-9 . _ -)");
  return text;
}

std::string quoted(const std::string& text) { return json(text).dump(); }

std::string shard_text(const ShardRecord& shard, std::uint64_t incarnation) {
  const std::string file = data_file_name(shard.shard, incarnation);
  const std::string leaves = file_name(shard.shard, incarnation, leaves_suffix);
  return "{\"shard\":" + quoted(shard.shard) + ",\"file\":" + quoted(file) +
         ",\"file_bytes\":" + std::to_string(shard.file_bytes()) +
         ",\"header_bytes\":" + std::to_string(shard.header_bytes) + ",\"header_xxh3\":\"" + hex(shard.header_digest) +
         "\",\"offset_bytes\":" + std::to_string(shard.offset_bytes) +
         ",\"data_bytes\":" + std::to_string(shard.data_bytes) + ",\"root_xxh3\":\"" + hex(shard.root_digest) +
         "\",\"leaves\":" + quoted(leaves) + ",\"layout_bytes\":" + std::to_string(shard.layout_bytes) +
         ",\"layout_xxh3\":\"" + hex(shard.layout_hash) + "\",\"written_by\":" + quoted(shard.written_by) + "}";
}

ShardRecord parse_shard(const json& object, std::uint64_t incarnation) {
  ShardRecord shard;
  shard.shard = name_field(object, "shard");
  shard.header_bytes = size_field(object, "header_bytes");
  shard.header_digest = digest_field(object, "header_xxh3");
  const std::uint64_t file_bytes = size_field(object, "file_bytes");
  shard.offset_bytes = size_field(object, "offset_bytes");
  shard.data_bytes = size_field(object, "data_bytes");
  shard.root_digest = digest_field(object, "root_xxh3");
  shard.layout_bytes = size_field(object, "layout_bytes");
  shard.layout_hash = digest_field(object, "layout_xxh3");
  shard.written_by = name_field(object, "written_by");
  // The piece's name and the incarnation determine the names of the files. The names in the record are for other
  // programs. They must agree.
  if (object.at("file") != data_file_name(shard.shard, incarnation) ||
      object.at("leaves") != file_name(shard.shard, incarnation, leaves_suffix))
    refuse("the files of shard " + shard.shard + " have wrong names");
  if (shard.header_bytes == 0 || shard.header_bytes % data_alignment_bytes != 0 ||
      shard.header_bytes > header_max_bytes + 2 * data_alignment_bytes || shard.layout_bytes > shard.header_bytes ||
      file_bytes < shard.header_bytes)
    refuse("the sizes of shard " + shard.shard + " do not fit each other");
  shard.whole_bytes = file_bytes - shard.header_bytes;
  if (!lies_where_it_belongs(shard))
    refuse("shard " + shard.shard + " has a place in its file that does not fit its name and the sizes");
  return shard;
}

CheckpointRecord parse_record(const json& object) {
  CheckpointRecord record;
  if (const auto format = size_field(object, "format"); format != format_version)
    refuse("it has format " + std::to_string(format) + ", but this version reads only format " +
           std::to_string(format_version) + "; use the version that wrote it");
  const auto kind = object.at("kind").get<std::string>();
  if (kind != "step" && kind != "shard")
    refuse("its kind is \"" + kind +
           "\", but must be \"step\" or \"shard\"; if another version wrote it, use that version");
  record.kind = kind == "step" ? CheckpointRecord::Kind::checkpoint : CheckpointRecord::Kind::shard;
  record.job = name_field(object, "job");
  record.written_by = name_field(object, "written_by");
  const auto incarnation = size_field(object, "incarnation"), iteration = size_field(object, "iteration");
  const auto world_size = size_field(object, "world_size");
  if (incarnation == 0 || incarnation > CheckpointId::incarnation_max)
    refuse("its incarnation " + std::to_string(incarnation) + " is out of bounds");
  if (iteration > std::uint64_t{CheckpointId::iteration_max})
    refuse("its iteration " + std::to_string(iteration) + " is out of bounds");
  if (world_size == 0 || world_size > UINT32_MAX)
    refuse("its world size " + std::to_string(world_size) + " is out of bounds");
  record.checkpoint = CheckpointId(incarnation, static_cast<std::int64_t>(iteration));
  record.world_size = static_cast<std::uint32_t>(world_size);
  for (const json& shard : object.at("shards")) record.shards.push_back(parse_shard(shard, incarnation));
  if (record.shards.empty()) refuse("it has no shards");
  if (record.kind == CheckpointRecord::Kind::shard && record.shards.size() != 1)
    refuse("it describes " + std::to_string(record.shards.size()) + " shards, but must describe a single one");
  for (std::size_t i = 1; i < record.shards.size(); ++i)
    if (record.shards[i - 1].shard >= record.shards[i].shard)
      refuse("its shards are not in order: they must be sorted by name, and each must occur once");
  if (record.kind == CheckpointRecord::Kind::checkpoint) files_of(record);  // throws if files are not whole
  return record;
}

// Compares the fields that are the same for all pieces of a file.
bool agree_on_the_file(const ShardRecord& a, const ShardRecord& b) {
  return a.header_bytes == b.header_bytes && a.header_digest == b.header_digest && a.whole_bytes == b.whole_bytes &&
         a.layout_bytes == b.layout_bytes && a.layout_hash == b.layout_hash;
}

// Throws unless `pieces` are all pieces of one file. Each of them already has the range that its name implies, and no
// name occurs twice.
void check_complete(const std::vector<const ShardRecord*>& pieces, const std::string& stored) {
  const std::string& first = pieces.front()->shard;
  const std::uint32_t of = core::parse_part(first).of;
  for (const ShardRecord* piece : pieces)
    if (core::parse_part(piece->shard).of != of || !agree_on_the_file(*piece, *pieces.front()))
      refuse("in " + stored + ", the records of the parts " + first + " and " + piece->shard +
             " belong to different files");
  if (pieces.size() != of)
    refuse(stored + " has only " + std::to_string(pieces.size()) + " of the " + std::to_string(of) +
           " parts of one shard; one of them is \"" + first + "\"");
}

}  // namespace

std::uint64_t digest_of(std::string_view bytes) { return kernels::leaf_digest(bytes.data(), bytes.size()); }

std::uint64_t ShardRecord::leaves_bytes() const { return kernels::leaf_count(data_bytes) * sizeof(std::uint64_t); }

const ShardRecord* CheckpointRecord::find(std::string_view shard) const {
  const auto found =
      std::lower_bound(shards.begin(), shards.end(), shard,
                       [](const ShardRecord& record, std::string_view name) { return record.shard < name; });
  return found != shards.end() && found->shard == shard ? &*found : nullptr;
}

std::vector<core::PieceInfo> CheckpointRecord::pieces() const {
  std::vector<core::PieceInfo> pieces;
  for (const ShardRecord& piece : shards)
    pieces.push_back({piece.shard, checkpoint, piece.data_bytes, piece.layout_bytes, piece.root_digest, world_size});
  return pieces;
}

bool lies_where_it_belongs(const ShardRecord& record) {
  const auto range = arena::range_of(core::parse_part(record.shard), record.whole_bytes);
  return record.offset_bytes == record.header_bytes + range.first_byte && record.data_bytes == range.size_bytes;
}

std::vector<ShardFile> files_of(const CheckpointRecord& stored) {
  std::map<std::string, std::vector<const ShardRecord*>> by_shard;
  for (const ShardRecord& piece : stored.shards) by_shard[core::parse_part(piece.shard).shard].push_back(&piece);
  std::vector<ShardFile> files;
  for (auto& [shard, pieces] : by_shard) {
    check_complete(pieces, folder_name(stored.checkpoint.iteration()));
    const auto number = [](const ShardRecord* piece) { return core::parse_part(piece->shard).index; };
    std::sort(pieces.begin(), pieces.end(), [&](const auto* a, const auto* b) { return number(a) < number(b); });
    const ShardRecord& first = *pieces.front();
    files.push_back({shard, file_name(shard, stored.checkpoint.incarnation(), data_suffix), first.header_bytes,
                     first.file_bytes(), std::move(pieces)});
  }
  return files;
}

std::string encode(const CheckpointRecord& record) {
  std::string body = "\"format\":" + std::to_string(format_version) +
                     ",\"kind\":" + (record.kind == CheckpointRecord::Kind::checkpoint ? "\"step\"" : "\"shard\"") +
                     ",\"job\":" + quoted(record.job) +
                     ",\"incarnation\":" + std::to_string(record.checkpoint.incarnation()) +
                     ",\"iteration\":" + std::to_string(record.checkpoint.iteration()) +
                     ",\"world_size\":" + std::to_string(record.world_size) +
                     ",\"written_by\":" + quoted(record.written_by) + ",\"shards\":[\n";
  for (const ShardRecord& shard : record.shards) {
    if (&shard != &record.shards.front()) body += ",\n";
    body += shard_text(shard, record.checkpoint.incarnation());
  }
  body += "]}\n";
  return std::string(seal_begin) + hex(digest_of(body)) + std::string(seal_end) + body;
}

CheckpointRecord decode_record(std::string_view text, const std::string& label) {
  if (text.size() < seal_bytes || !text.starts_with(seal_begin) ||
      text.substr(seal_begin.size() + digits, seal_end.size()) != seal_end ||
      text.substr(seal_begin.size(), digits) != hex(digest_of(text.substr(seal_bytes))))
    refuse(label + " is damaged: its digest does not match");
  try {
    return parse_record(json::parse(text));
  } catch (const json::exception&) {
    refuse(label + " is malformed: a field is missing or of the wrong type");
  } catch (const Failure& failure) {
    refuse(label + " is malformed: " + failure.what());
  }
}

std::string folder_name(std::int64_t iteration) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "step-%08lld", static_cast<long long>(iteration));
  return text.data();
}

std::optional<std::int64_t> parse_folder_name(std::string_view name) {
  constexpr std::string_view prefix = "step-";
  if (!name.starts_with(prefix)) return std::nullopt;
  const auto iteration = parse_number<std::int64_t>(name.substr(prefix.size()));
  if (!iteration || *iteration < 0 || *iteration > CheckpointId::iteration_max || folder_name(*iteration) != name)
    return std::nullopt;
  return iteration;
}

std::string file_name(std::string_view shard, std::uint64_t incarnation, std::string_view suffix) {
  return std::string(shard) + "." + std::to_string(incarnation) + std::string(suffix);
}

std::string data_file_name(std::string_view piece, std::uint64_t incarnation) {
  return file_name(core::parse_part(piece).shard, incarnation, data_suffix);
}

std::optional<std::uint64_t> incarnation_in(std::string_view name) {
  const auto cut = [&](std::string_view suffix) {
    if (!name.ends_with(suffix)) return false;
    name.remove_suffix(suffix.size());
    return true;
  };
  const auto last_part = [&] { return name.substr(std::min(name.rfind('.'), name.size() - 1) + 1); };
  if (cut(part_suffix))
    name.remove_suffix(std::min(last_part().size() + 1, name.size()));
  else
    cut(parts_suffix);
  if (!cut(data_suffix) && !cut(leaves_suffix) && !cut(record_suffix)) return std::nullopt;
  if (name.find('.') == std::string_view::npos) return std::nullopt;
  return parse_number<std::uint64_t>(last_part());
}

Header encode_header(const arena::Manifest& manifest, const std::string& job) {
  std::string layout = manifest.layout;
  if (layout.empty()) {
    const std::string length = std::to_string(manifest.length_bytes);
    layout = "{" + quoted(std::string(opaque_tensor_name)) + ":{\"dtype\":\"U8\",\"shape\":[" + length +
             "],\"data_offsets\":[0," + length + "]}}";
  }
  const core::ShardPart part = core::parse_part(manifest.shard);
  const std::uint64_t whole_bytes = arena::parse_layout(layout).length_bytes;
  if (arena::range_of(part, whole_bytes).size_bytes != manifest.length_bytes)
    refuse("the layout of shard " + manifest.shard + " does not fit its " + std::to_string(manifest.length_bytes) +
           " bytes");
  const std::string metadata = json{{"format", "pt"},
                                    {"ckptengine.job", job},
                                    {"ckptengine.shard", part.shard},
                                    {"ckptengine.incarnation", std::to_string(manifest.checkpoint.incarnation())},
                                    {"ckptengine.iteration", std::to_string(manifest.checkpoint.iteration())}}
                                   .dump();
  std::string text = "{\"__metadata__\":" + metadata + (layout == "{}" ? "}" : "," + layout.substr(1));
  const std::size_t used = sizeof(std::uint64_t) + text.size();
  text.append((data_alignment_bytes - used % data_alignment_bytes) % data_alignment_bytes, ' ');
  if (text.size() > header_max_bytes)
    throw Failure(CKPT_ERR_INVALID, "the names of the tensors in shard " + manifest.shard + " take " +
                                        std::to_string(text.size()) + " bytes; safetensors has room for " +
                                        std::to_string(header_max_bytes) + ", so shorten them or split the shard");
  const std::uint64_t length = text.size();
  std::string header(sizeof(length), '\0');
  std::memcpy(header.data(), &length, sizeof(length));
  return {header + text, whole_bytes};
}

ShardRecord describe(const arena::Manifest& manifest, const Header& header, const std::string& node) {
  ShardRecord record;
  record.shard = manifest.shard;
  record.header_bytes = header.bytes.size();
  record.header_digest = digest_of(header.bytes);
  record.whole_bytes = header.whole_bytes;
  record.offset_bytes =
      record.header_bytes + arena::range_of(core::parse_part(record.shard), record.whole_bytes).first_byte;
  record.data_bytes = manifest.length_bytes;
  record.root_digest = manifest.root_digest;
  record.layout_bytes = manifest.layout.size();
  record.layout_hash = manifest.layout_hash;
  record.written_by = node;
  return record;
}

std::string decode_header(std::string_view header, const ShardRecord& record, const std::string& label) {
  std::uint64_t length = 0;
  if (header.size() != record.header_bytes || digest_of(header) != record.header_digest)
    refuse_file("the header of " + label + " is damaged: its digest does not match");
  std::memcpy(&length, header.data(), sizeof(length));
  std::string_view text = header.substr(sizeof(length));
  if (length != text.size())
    refuse_file(label + " is damaged: its first 8 bytes say that its header has " + std::to_string(length) +
                " bytes, but the header has " + std::to_string(text.size()));
  text = text.substr(0, text.find_last_not_of(' ') + 1);
  // The layout's own text ends the header, except for its opening brace.
  std::string layout;
  if (record.layout_bytes > 2) {
    if (text.size() < record.layout_bytes) refuse_file("the header of " + label + " is too short for its layout");
    layout = "{" + std::string(text.substr(text.size() - (record.layout_bytes - 1)));
  } else if (record.layout_bytes == 2) {
    layout = "{}";
  }
  if (arena::layout_hash(layout) != record.layout_hash) refuse_file("the layout in " + label + " is damaged");
  if (!layout.empty() && arena::parse_layout(layout).length_bytes != record.whole_bytes)
    refuse_file("the layout in " + label + " does not fit its data");
  return layout;
}

}  // namespace ckpt::persist
