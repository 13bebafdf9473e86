// Writes the text of `ckptctl --version`: the versions of the library and of all formats that programs of one job
// share.
#pragma once

#include <string>
#include <string_view>

namespace ckpt::cli {

// Returns one `NAME VERSION` per line. `library` is the library's version, which comes first.
std::string versions_text(std::string_view library);

}  // namespace ckpt::cli
