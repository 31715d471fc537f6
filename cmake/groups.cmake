# Which files are compiled together, as one. CMake looks again whenever one of them has changed.

# names_of(FILE OUT): what stands at the beginning of a line is taken for a name of the file's own; too
# many do no harm. Types are marked. Constants count wherever they are: they must not shadow others.
function(names_of file out)
  file(READ ${file} text)
  string(REGEX REPLACE "[][;]" "(" text "${text}")  # which CMake's lists would stumble over
  string(REGEX REPLACE "\n(TEST|INSTANTIATE|namespace|template)[^\n]*" "\n" text "${text}")
  string(REGEX REPLACE "\n +constexpr " "\nconstexpr " text "${text}")
  string(REGEX MATCHALL
    "\n(using namespace|(struct|class|enum class|using) [A-Za-z0-9_]+( {| :| =)|[A-Za-z][A-Za-z0-9_:<>,&* ]* [*&]*[A-Za-z0-9_]+( =|{|\\())"
    names "${text}")
  list(TRANSFORM names REPLACE "( {| :| =|{|\\()$" "")
  list(TRANSFORM names REPLACE "^\n(struct|class|enum class|using) " "type:")
  list(TRANSFORM names REPLACE "^.*[ *&]" "")
  set(${out} ${names} PARENT_SCOPE)
endfunction()
file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/../include/*.h
  ${CMAKE_CURRENT_LIST_DIR}/../src/*.h)
foreach(header ${headers})
  names_of(${header} names)
  list(FILTER names INCLUDE REGEX "^type:")  # functions are the files' to define
  list(APPEND HEADER_NAMES ${names})
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${headers})

# group_sources(NAME SIZE FILE...): files that targets with GROUPED read together, as one, about SIZE of
# them: most of a build's time is headers, and templates that every file makes again. Files that use a
# name for two things are kept apart; those that use a name of a header's for something else stay alone.
function(group_sources name size)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN})
  list(LENGTH ARGN groups)
  math(EXPR groups "(${groups} + ${size} - 1) / ${size}")
  foreach(file ${ARGN})
    names_of(${file} names)
    set(others ${names})
    list(REMOVE_ITEM others ${HEADER_NAMES})
    if(NOT "${others}" STREQUAL "${names}")
      file(APPEND ${GROUPS_FILE} "${file}\n")
      continue()
    endif()
    set(best 0)  # the smallest of those that it can join
    foreach(group RANGE 1 ${groups})
      list(LENGTH files_${group} count)
      set(others ${names})
      list(REMOVE_ITEM others ${taken_${group}} "")
      if("${others}" STREQUAL "${names}" AND (best EQUAL 0 OR count LESS least))
        set(best ${group})
        set(least ${count})
      endif()
    endforeach()
    if(best EQUAL 0)
      math(EXPR groups "${groups} + 1")
      set(best ${groups})
    endif()
    list(APPEND files_${best} ${file})
    list(APPEND taken_${best} ${names})
    set_source_files_properties(${file} PROPERTIES UNITY_GROUP ${name}${best})
  endforeach()
  foreach(group RANGE 1 ${groups})
    string(REPLACE ";" " " line "${files_${group}}")
    file(APPEND ${GROUPS_FILE} "${line}\n")
  endforeach()
endfunction()
set(GROUPS_FILE ${CMAKE_BINARY_DIR}/groups.txt)  # a line each, for tools/tidy
file(WRITE ${GROUPS_FILE} "")
set(GROUPED UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
