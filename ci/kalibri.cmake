# Warnings, and the rule of who may include whom. Each target gets an include root of its own under the build folder: a
# tree of links that shows exactly the folders that it may see. An include of anything else does not compile.

add_library(kalibri_flags INTERFACE)
target_compile_options(kalibri_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wdouble-promotion -Wold-style-cast -Wundef -Werror
  -ffp-contract=off
  # g++ 12 warns of overlapping copies in every "text" + std::string (its bug 105651, mended in 13).
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
target_compile_definitions(kalibri_flags INTERFACE KALIBRI_VERSION="${PROJECT_VERSION}")
if(KALIBRI_SANITIZE)
  target_compile_options(kalibri_flags INTERFACE
    -fsanitize=${KALIBRI_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
    # g++ warns of moved-from members of std::function when it instruments them (seen in <regex>); the sanitizer looks itself.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(kalibri_flags INTERFACE -fsanitize=${KALIBRI_SANITIZE})
endif()

# kalibri_see(TARGET path…): makes build/roots/TARGET with a link for each path (a folder's sources, or one header) and
# puts it on TARGET's include path, alone.
function(kalibri_see target)
  set(root ${CMAKE_BINARY_DIR}/roots/${target})
  file(REMOVE_RECURSE ${root})
  foreach(path IN LISTS ARGN)
    get_filename_component(parent ${root}/${path} DIRECTORY)
    file(MAKE_DIRECTORY ${parent})
    file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${path} ${root}/${path} SYMBOLIC)
  endforeach()
  target_include_directories(${target} PRIVATE ${root})
  target_link_libraries(${target} PRIVATE kalibri_flags)
endfunction()

# kalibri_library(NAME SOURCES … SEES … LINKS …)
function(kalibri_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;SEES;LINKS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  kalibri_see(${name} ${arg_SEES})
  target_link_libraries(${name} PRIVATE ${arg_LINKS})
endfunction()

# kalibri_program(NAME SOURCES … SEES … LINKS …)
function(kalibri_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;SEES;LINKS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  kalibri_see(${name} ${arg_SEES})
  target_link_libraries(${name} PRIVATE ${arg_LINKS})
endfunction()

# kalibri_test(NAME LABELS … SOURCES … SEES … LINKS …): a test program on our own main; every case becomes a ctest test.
# TIMEOUT in seconds, default 300. Tests find the source tree, the programs and a scratch folder by compile definitions.
function(kalibri_test name)
  if(NOT KALIBRI_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;SEES;LINKS;LABELS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  add_executable(${name} ${arg_SOURCES})
  kalibri_see(${name} ${arg_SEES} fixtures)
  target_link_libraries(${name} PRIVATE ${arg_LINKS} kalibri_fixtures kalibri_test_main Catch2::Catch2)
  target_compile_definitions(${name} PRIVATE
    KALIBRI_SOURCE_DIR="${CMAKE_SOURCE_DIR}" KALIBRI_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  catch_discover_tests(${name} TEST_PREFIX "${name}: " PROPERTIES
    LABELS "${arg_LABELS}" SKIP_RETURN_CODE 77 TIMEOUT ${arg_TIMEOUT})
endfunction()

# kalibri_fuzzer(NAME SOURCES … SEES … LINKS …): a program around LLVMFuzzerTestOneInput, where everything is instrumented
# for it (ci/presets/fuzz.cmake).
function(kalibri_fuzzer name)
  if(NOT KALIBRI_SANITIZE MATCHES "fuzzer-no-link")
    return()
  endif()
  kalibri_program(${name} ${ARGN})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()
