# The functions of nixpkgs' lib that imp's flake and module call, with the same meaning for the cases they are called
# with; and a small module system.
let
  inherit (builtins)
    attrNames
    concatLists
    concatStringsSep
    elem
    filter
    foldl'
    head
    isAttrs
    isBool
    isFunction
    isInt
    isList
    isString
    length
    listToAttrs
    map
    mapAttrs
    ;
in
rec {
  genAttrs = names: f: listToAttrs (map (name: { inherit name; value = f name; }) names);
  mapAttrsToList = f: set: map (name: f name set.${name}) (attrNames set);
  filterAttrs = keep: set: removeAttrs set (filter (name: !keep name set.${name}) (attrNames set));
  optional = condition: x: if condition then [ x ] else [ ];
  optionals = condition: xs: if condition then xs else [ ];
  optionalAttrs = condition: set: if condition then set else { };
  optionalString = condition: text: if condition then text else "";
  concatMapStringsSep = separator: f: xs: concatStringsSep separator (map f xs);
  hasInfix = part: text: builtins.replaceStrings [ part ] [ "" ] text != text;
  sublist = start: xs: builtins.genList (i: builtins.elemAt xs (start + i)) (length xs - start);
  unique = foldl' (seen: x: if elem x seen then seen else seen ++ [ x ]) [ ];
  assertMsg = condition: message: condition || throw message;
  fix = f: let x = f x; in x;
  isDerivation = x: isAttrs x && (x.type or null) == "derivation";
  recursiveUpdate =
    a: b:
    if isAttrs a && isAttrs b && !isDerivation a && !isDerivation b then
      a // mapAttrs (name: value: if a ? ${name} then recursiveUpdate a.${name} value else value) b
    else
      b;
  getExe = package: "${package}/bin/${package.meta.mainProgram}";
  escapeShellArg = text: "'${builtins.replaceStrings [ "'" ] [ "'\\''" ] (toString text)}'";
  escapeShellArgs = concatMapStringsSep " " escapeShellArg;
  licenses.asl20.spdxId = "Apache-2.0";
  platforms.linux = [ "x86_64-linux" "aarch64-linux" ];
  generators.toINI =
    { mkKeyValue }:
    sections:
    concatStringsSep "\n" (
      mapAttrsToList (
        name: pairs: "[${name}]\n" + concatStringsSep "" (mapAttrsToList (k: v: mkKeyValue k v + "\n") pairs)
      ) sections
    );

  # A function called with what it names of `scope`, and again with other arguments by `.override`.
  callPackageWith =
    scope: file: args:
    let
      f = import file;
    in
    makeOverridable f (builtins.intersectAttrs (builtins.functionArgs f) scope // args);
  makeOverridable =
    f: args:
    f args
    // {
      override = new: makeOverridable f (args // (if isFunction new then new args else new));
    };

  # --- modules ---------------------------------------------------------------------------------------------------

  mkOption = option: { _type = "option"; } // option;
  mkEnableOption =
    what:
    mkOption {
      type = types.bool;
      default = false;
      description = "Whether to enable ${what}.";
    };
  mkIf = condition: content: { _type = "if"; inherit condition content; };
  mkOverride = priority: content: { _type = "override"; inherit priority content; };
  literalExpression = text: { _type = "literalExpression"; inherit text; };

  types =
    let
      type = name: check: merge: { inherit name check merge; };
      # several definitions must agree
      same = place: values: if length (unique values) == 1 then head values else throw "${place}: conflicting definitions";
      attrsOf =
        of:
        type "attributes of ${of.name}" isAttrs (
          place: sets: mapAttrs (name: mergeAs "${place}.${name}" of) (builtins.zipAttrsWith (_: values: values) sets)
        );
    in
    {
      inherit attrsOf;
      bool = type "boolean" isBool same;
      int = type "integer" isInt same;
      str = type "string" isString same;
      port = type "port" (x: isInt x && x >= 0 && x <= 65535) same;
      package = type "package" isDerivation (_: head);
      listOf = of: type "list of ${of.name}" (x: isList x && builtins.all of.check x) (_: concatLists);
      nullOr = of: type "null or ${of.name}" (x: x == null || of.check x) same;
      anything = type "anything" (_: true) (
        place: values:
        if builtins.all isAttrs values then
          foldl' recursiveUpdate { } values
        else if builtins.all isList values then
          concatLists values
        else
          same place values
      );
    };

  # mkIf and mkOverride undone: a list of { priority; value; }
  discharge =
    definition:
    if definition._type or null == "if" then
      optionals definition.condition (discharge definition.content)
    else if definition._type or null == "override" then
      map (d: d // { inherit (definition) priority; }) (discharge definition.content)
    else
      [ { priority = 100; value = definition; } ];

  # The definitions of the strongest priority, checked and merged.
  mergeAs =
    place: type: definitions:
    let
      all = concatLists (map discharge definitions);
      strongest = foldl' (least: d: if d.priority < least then d.priority else least) 9999 all;
      values = map (d: d.value) (filter (d: d.priority == strongest) all);
    in
    if values == [ ] then
      throw "${place}: used but not defined"
    else if !builtins.all type.check values then
      throw "${place}: not of type ${type.name}"
    else
      type.merge place values;

  # Options and definitions are walked together; what has no option is an error, unless a freeformType takes it.
  evalModules =
    { modules, specialArgs }:
    let
      loaded = map (m: let f = if isFunction m || isAttrs m then m else import m; in if isFunction f then f arguments else f) modules;
      arguments = specialArgs // { inherit config; };
      # a module without `options` or `config` is all definitions
      normal = map (m: if m ? options || m ? config then m else { config = m; }) loaded;
      options = foldl' recursiveUpdate { } (map (m: m.options or { }) normal);
      freeform = builtins.any (m: m ? freeformType) normal;
      # a condition moves onto each attribute, still unread: it may ask for another part of config
      spread =
        d:
        if d._type or null == "if" then
          mapAttrs (_: mkIf d.condition) (spread d.content)
        else
          d;
      walk =
        place: option: definitions:
        if option._type or null == "option" then
          mergeAs place option.type (definitions ++ optional (option ? default) (mkOverride 1500 option.default))
        else
          let
            sets = map spread definitions;
            given = name: concatLists (map (set: optional (set ? ${name}) set.${name}) sets);
          in
          genAttrs (unique (attrNames option ++ concatLists (map attrNames sets))) (
            name:
            if option ? ${name} then
              walk "${place}.${name}" option.${name} (given name)
            else if freeform then
              mergeAs "${place}.${name}" types.anything (given name)
            else
              throw "the option ${place}.${name} does not exist"
          );
      config = walk "config" options (map (m: m.config or { }) normal);
    in
    {
      inherit config options;
    };
}
