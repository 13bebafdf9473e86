# cmake -DFROM=a.ptx -DTO=b.ptx -DVERSION=8.2 -P CkptLowerPtx.cmake: writes the PTX as of an older version of the
# language, so that older drivers take it. ptxas then says whether the text keeps to that version.
file(READ ${FROM} text)
if(NOT text MATCHES "\n\\.version ([0-9.]+)\n")
  message(FATAL_ERROR "${FROM} has no line with the version of PTX")
endif()
if(CMAKE_MATCH_1 VERSION_GREATER VERSION)
  string(REPLACE "\n.version ${CMAKE_MATCH_1}\n" "\n.version ${VERSION}\n" text "${text}")
endif()
file(WRITE ${TO} "${text}")
